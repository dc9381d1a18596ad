#!lua
-- recount: set the number of places taken to what was counted, unless the activity has changed since the count began.
--
-- KEYS[1] {activity:ID}   hash  taken, sequence, …
-- ARGV[1] taken           whole number, as it was when the count began
-- ARGV[2] sequence        whole number, as it was when the count began
-- ARGV[3] counted         whole number, receipts of people who hold a place
--
-- Returns {"recounted"} or {"changed"}, with nothing written
--
-- Example: KEYS {activity:42}, ARGV 57 60 56  ->  {"recounted"}
-- A grant moves `sequence`, and a place given back moves `taken` without it, so both unchanged mean that neither came.

local activity_key = KEYS[1]
local counted = tonumber(ARGV[3])

local activity = redis.call('HMGET', activity_key, 'taken', 'sequence')
if not counted then
  return redis.error_reply('ERR malformed arguments')
end
if activity[1] ~= ARGV[1] or activity[2] ~= ARGV[2] then
  return { 'changed' }
end
redis.call('HSET', activity_key, 'taken', ARGV[3])
return { 'recounted' }
