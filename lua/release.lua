#!lua
-- release: give a user's place back, and note in the same step that MySQL does not know it yet.
--
-- KEYS[1] {activity:ID}           hash  capacity, taken, archived_at_ms, …
-- KEYS[2] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[3] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] user id                 text
-- ARGV[2] grace_ms                whole number: how long the fast path may take before the relay steps in
--
-- Returns one of
--   {"released", receipt, 1}
--   {"already-cancelled", receipt, queued}   queued 1: MySQL may not know it yet; 0: it does
--   {"not-signed-up"}  {"activity-not-found"}
--   {"archived"}   the sign-ups are in MySQL only
--
-- Example: KEYS {activity:42} …, ARGV alice 60000  ->  {"released", "2 1796040060456 57 1796040000123", 1}
-- A place can be given back at any time: also while the activity is paused, and after it has closed,
-- until it is archived.

local activity_key, signups_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local user_id = ARGV[1]
local grace_ms = tonumber(ARGV[2])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local activity = redis.call('HMGET', activity_key, 'capacity', 'taken', 'archived_at_ms')
local receipt = redis.call('HGET', signups_key, user_id)
local queued = redis.call('ZSCORE', outbox_key, user_id) and 1 or 0

if not activity[1] then
  return { 'activity-not-found' }
end
if activity[3] then
  return { 'archived' }
end
if not receipt then
  return { 'not-signed-up' }
end
local status, previous_version, sequence, signed_up_at_ms = receipt:match('^([12]) (%d+) (%d+) ?(%d*)$')
if not status then
  return redis.error_reply('ERR malformed receipt')
end
if status == '2' then
  return { 'already-cancelled', receipt, queued }
end
local taken = tonumber(activity[2])
if not (grace_ms and taken and taken >= 1) then
  return redis.error_reply('ERR malformed activity')
end

-- A clock that stands behind the previous version must not make this fact lose to it.
local version = math.max(tonumber(previous_version) + 1, now_ms)
if signed_up_at_ms == '' then
  signed_up_at_ms = previous_version
end
local cancelled = string.format('2 %.0f %s %s', version, sequence, signed_up_at_ms)

redis.call('HSET', activity_key, 'taken', taken - 1)
redis.call('HSET', signups_key, user_id, cancelled)
redis.call('ZADD', outbox_key, now_ms + grace_ms, user_id)
return { 'released', cancelled, 1 }
