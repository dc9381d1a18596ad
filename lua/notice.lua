#!lua
-- notice: note that activities are missing, and since when, in the order of barriers.
--
-- KEYS[1] rebuild         hash  activity id -> number of the first barrier that may rebuild it; latest -> the latest
--                               number given; passed, passed.1, … -> the latest barrier that came out of queue 0, 1, …
-- ARGV    activity id     text; 1 to 1,000 of them, that were found missing just now
--
-- Returns {"noticed", barrier, number, number, …}   the number of a new barrier, and that of each activity; all as text
--
-- Example: KEYS rebuild, ARGV 42  ->  {"noticed", "1796040000123", "1796040000123"}
-- A barrier is a message that is sent to each queue after the loss was noticed. When it came out of them all, so has
-- all that was sent before the loss. Numbers follow the clock, so that they rise also after this key itself was lost.

local rebuild_key = KEYS[1]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local latest = redis.call('HGET', rebuild_key, 'latest')
local numbers = redis.call('HMGET', rebuild_key, unpack(ARGV))
local barrier = string.format('%.0f', math.max(tonumber(latest or '0') + 1, now_ms))

local reply = { 'noticed', barrier }
local fields = { 'latest', barrier }
for i, id in ipairs(ARGV) do
  if not numbers[i] then
    fields[#fields + 1] = id
    fields[#fields + 1] = barrier
  end
  reply[#reply + 1] = numbers[i] or barrier
end

redis.call('HSET', rebuild_key, unpack(fields))
return reply
