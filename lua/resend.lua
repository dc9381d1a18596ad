#!lua
-- resend: note again, for the relay, facts that MySQL lacks though no note says so.
--
-- KEYS[1] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[2] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV    user id, version        text, whole number: the version that MySQL holds, or 0; repeated for each fact,
--                                 1,000 of them at most
--
-- Returns {"resent", count}   how many notes were added
--
-- Example: KEYS {activity:42}:signups …, ARGV alice 0  ->  {"resent", 1}
-- Where MySQL holds the very version with another content, written before Redis lost it, the fact gets the next one:
-- what Redis says now is what people were told last.

local signups_key, outbox_key = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local receipts, notes = {}, {}
for i = 1, #ARGV, 2 do
  local user_id, recorded_version = ARGV[i], tonumber(ARGV[i + 1])
  if not recorded_version then
    return redis.error_reply('ERR malformed version')
  end
  local receipt = redis.call('HGET', signups_key, user_id)
  if receipt then
    local status, version, sequence, signed_up_at_ms = receipt:match('^([12]) (%d+) (%d+) ?(%d*)$')
    if not status then
      return redis.error_reply('ERR malformed receipt')
    end
    if tonumber(version) == recorded_version then
      if signed_up_at_ms == '' then
        signed_up_at_ms = version
      end
      receipts[#receipts + 1] = user_id
      receipts[#receipts + 1] = string.format('%s %.0f %s %s', status, recorded_version + 1, sequence, signed_up_at_ms)
    end
    if tonumber(version) >= recorded_version then
      notes[#notes + 1] = now_ms
      notes[#notes + 1] = user_id
    end
  end
end

if #receipts > 0 then
  redis.call('HSET', signups_key, unpack(receipts))
end
local count = #notes > 0 and redis.call('ZADD', outbox_key, 'NX', unpack(notes)) or 0
return { 'resent', count }
