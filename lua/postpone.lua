#!lua flags=allow-oom
-- postpone: let the relay leave the note of a parked fact alone, unless a newer fact of that user is waiting.
--
-- KEYS[1] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[2] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] pause_ms                whole number: for how long
-- ARGV    user id, version        text, whole number; repeated for each fact, 1,000 of them at most
--
-- Returns {"postponed", count}
--
-- Example: KEYS {activity:42}:signups …, ARGV 86400000 alice 1796040000123  ->  {"postponed", 1}

local signups_key, outbox_key = KEYS[1], KEYS[2]
local pause_ms = tonumber(ARGV[1])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if not pause_ms then
  return redis.error_reply('ERR malformed arguments')
end
local due = string.format('%.0f', now_ms + pause_ms)

local postponed = {}
for i = 2, #ARGV, 2 do
  local user_id, version = ARGV[i], tonumber(ARGV[i + 1])
  local receipt = redis.call('HGET', signups_key, user_id)
  local waiting_version = receipt and tonumber(receipt:match('^[12] (%d+)'))
  if not version then
    return redis.error_reply('ERR malformed version')
  end
  if waiting_version and waiting_version <= version and redis.call('ZSCORE', outbox_key, user_id) then
    postponed[#postponed + 1] = due
    postponed[#postponed + 1] = user_id
  end
end

if #postponed > 0 then
  redis.call('ZADD', outbox_key, 'XX', unpack(postponed))
end
return { 'postponed', #postponed / 2 }
