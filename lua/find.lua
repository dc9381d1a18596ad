#!lua flags=no-writes
-- find: show a user's receipt.
--
-- KEYS[1] {activity:ID}           hash  capacity, archived_at_ms, …
-- KEYS[2] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[3] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] user id                 text
--
-- Returns one of
--   {"found", receipt, queued}   queued 1: MySQL may not know it yet; 0: it does
--   {"not-signed-up"}  {"activity-not-found"}
--   {"archived"}   the sign-ups are in MySQL only
--
-- Example: KEYS {activity:42} …, ARGV alice  ->  {"found", "1 1796040000123 57", 0}

local activity_key, signups_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local user_id = ARGV[1]

local activity = redis.call('HMGET', activity_key, 'capacity', 'archived_at_ms')
local receipt = redis.call('HGET', signups_key, user_id)
local queued = redis.call('ZSCORE', outbox_key, user_id) and 1 or 0

if not activity[1] then
  return { 'activity-not-found' }
end
if not receipt and activity[2] then
  return { 'archived' }
end
if not receipt then
  return { 'not-signed-up' }
end
return { 'found', receipt, queued }
