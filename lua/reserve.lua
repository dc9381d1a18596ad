#!lua
-- reserve: take one place for one user, and note in the same step that MySQL does not know it yet.
--
-- KEYS[1] {activity:ID}           hash  capacity, taken, sequence, state, opens_at_ms, closes_at_ms, archived_at_ms
-- KEYS[2] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"; status 1 is
--                                       signed up, 2 cancelled; the last is left out where it equals the version
-- KEYS[3] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] user id                 text
-- ARGV[2] grace_ms                whole number: how long the fast path may take before the relay steps in
--
-- Returns one of
--   {"reserved", receipt, 1}
--   {"already-signed-up", receipt, queued}   queued 1: MySQL may not know it yet; 0: it does
--   {"sold-out"}  {"paused"}  {"closed"}  {"not-open", opens_at_ms}  {"activity-not-found"}
--
-- Example: KEYS {activity:42} …, ARGV alice 60000  ->  {"reserved", "1 1796040000123 57", 1}
-- Everything is checked, on all three keys, before anything is written: an error leaves all as it was.

local activity_key, signups_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local user_id = ARGV[1]
local grace_ms = tonumber(ARGV[2])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local activity = redis.call(
  'HMGET', activity_key,
  'capacity', 'taken', 'sequence', 'state', 'opens_at_ms', 'closes_at_ms', 'archived_at_ms'
)
local receipt = redis.call('HGET', signups_key, user_id)
local queued = redis.call('ZSCORE', outbox_key, user_id) and 1 or 0

if not activity[1] then
  return { 'activity-not-found' }
end

local previous_version = 0
if receipt then
  local status, version = receipt:match('^([12]) (%d+) %d+')
  if not status then
    return redis.error_reply('ERR malformed receipt')
  end
  if status == '1' then
    return { 'already-signed-up', receipt, queued }
  end
  previous_version = tonumber(version)
end

local capacity, taken, sequence = tonumber(activity[1]), tonumber(activity[2]), tonumber(activity[3])
local state, opens_at_ms, closes_at_ms, archived_at_ms = activity[4], activity[5], activity[6], activity[7]
if not (grace_ms and capacity and taken and sequence) then
  return redis.error_reply('ERR malformed activity')
end
if archived_at_ms then
  return { 'closed' }
end
if state ~= 'open' then
  return { 'paused' }
end
if opens_at_ms and now_ms < tonumber(opens_at_ms) then
  return { 'not-open', opens_at_ms }
end
if closes_at_ms and now_ms >= tonumber(closes_at_ms) then
  return { 'closed' }
end
if taken >= capacity then
  return { 'sold-out' }
end

-- A clock that stands behind the previous version must not make this fact lose to it.
local version = math.max(previous_version + 1, now_ms)
local granted = string.format('1 %.0f %.0f', version, sequence + 1)
if version ~= now_ms then
  granted = granted .. string.format(' %.0f', now_ms)
end

redis.call('HSET', activity_key, 'taken', taken + 1, 'sequence', string.format('%.0f', sequence + 1))
redis.call('HSET', signups_key, user_id, granted)
redis.call('ZADD', outbox_key, now_ms + grace_ms, user_id)
return { 'reserved', granted, 1 }
