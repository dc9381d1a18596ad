#!lua
-- archive: let the sign-ups of an activity that has ended expire. What the organiser set stays, with the counts.
--
-- KEYS[1] {activity:ID}           hash  capacity, closes_at_ms, archived_at_ms, …
-- KEYS[2] {activity:ID}:signups   hash  user id -> receipt
-- KEYS[3] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] retention_ms            whole number: how long after its close an activity is kept
-- ARGV[2] expire_ms               whole number: how long receipts are still shown
--
-- Returns one of
--   {"archived"}      also if it was before
--   {"not-closed"}    it is open, or closed less than retention_ms ago; nothing was changed
--   {"not-settled"}   MySQL does not know everything yet; nothing was changed
--   {"activity-not-found"}
--
-- Example: KEYS {activity:42} …, ARGV 604800000 86400000  ->  {"archived"}

local activity_key, signups_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local retention_ms, expire_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local activity = redis.call('HMGET', activity_key, 'capacity', 'closes_at_ms', 'archived_at_ms')
if not (retention_ms and expire_ms) then
  return redis.error_reply('ERR malformed arguments')
end
if not activity[1] then
  return { 'activity-not-found' }
end
if activity[3] then
  return { 'archived' }
end
if not activity[2] or now_ms < tonumber(activity[2]) + retention_ms then
  return { 'not-closed' }
end
if redis.call('EXISTS', outbox_key) == 1 then
  return { 'not-settled' }
end

redis.call('HSET', activity_key, 'archived_at_ms', string.format('%.0f', now_ms))
redis.call('PEXPIRE', signups_key, expire_ms)
return { 'archived' }
