#!lua flags=allow-oom
-- claim: hand overdue outbox notes to the relay, and put each off, so that no other run sends it too.
--
-- KEYS[1] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[2] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] now_ms                  whole number, ms since 1970: the caller's clock. The later of it and the server's own
--                                 counts, since a server's clock that was set back would keep its notes from us
-- ARGV[2] grace_ms                whole number: the shortest time until the note may be claimed again
-- ARGV[3] limit                   whole number, 1 to 1,000 notes
--
-- Returns {"claimed", now_ms, damaged, user id, receipt, user id, receipt, …}   the time that counted as text; damaged
-- says how many notes stand beside a receipt of another form: they wait for an operator, and are claimed again in a day
--
-- Example: KEYS {activity:42}:signups …, ARGV 1796040060456 60000 1000
--          ->  {"claimed", "1796040060456", 0, "alice", "1 1796040000123 57"}
-- A note is put off by the age of its fact, but by grace_ms at least and ten times that at most: what does not get into
-- MySQL is tried less and less often. It frees or changes a little memory only, so it may run when Redis is out of it.

local signups_key, outbox_key = KEYS[1], KEYS[2]
local grace_ms, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local a_day_ms = 24 * 60 * 60 * 1000

local time = redis.call('TIME')
local now_ms = math.max(time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]))
if not (grace_ms and limit and limit >= 1 and limit <= 1000) then
  return redis.error_reply('ERR malformed arguments')
end

local reply = { 'claimed', string.format('%.0f', now_ms), 0 }
local users = redis.call('ZRANGEBYSCORE', outbox_key, '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, limit)
if #users == 0 then
  return reply
end
local receipts = redis.call('HMGET', signups_key, unpack(users))

local put_off, empty = {}, {}
for i, user_id in ipairs(users) do
  local receipt = receipts[i]
  local version = receipt and tonumber(receipt:match('^[12] (%d+) %d+ ?%d*$'))
  local pause_ms = a_day_ms
  if version then
    pause_ms = math.max(grace_ms, math.min(now_ms - version, 10 * grace_ms))
    reply[#reply + 1] = user_id
    reply[#reply + 1] = receipt
  elseif receipt then
    reply[3] = reply[3] + 1
  end
  if receipt then
    put_off[#put_off + 1] = string.format('%.0f', now_ms + pause_ms)
    put_off[#put_off + 1] = user_id
  else
    -- A note without a receipt has nothing to send.
    empty[#empty + 1] = user_id
  end
end

if #empty > 0 then
  redis.call('ZREM', outbox_key, unpack(empty))
end
if #put_off > 0 then
  redis.call('ZADD', outbox_key, 'XX', unpack(put_off))
end
return reply
