#!lua flags=allow-oom
-- settle: drop the outbox note of each fact that MySQL now holds, unless a newer fact of that user is waiting.
--
-- KEYS[1] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[2] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV    user id, version        text, whole number; repeated for each fact, 1,000 of them at most
--
-- Returns {"settled", count, damaged}   how many notes were dropped, and how many stay beside a receipt of another form
--
-- Example: KEYS {activity:42}:signups …, ARGV alice 1796040000123 bob 1796040000124  ->  {"settled", 2, 0}
-- It only removes, so it may run when Redis is out of memory.

local signups_key, outbox_key = KEYS[1], KEYS[2]

local settled, damaged = {}, 0
for i = 1, #ARGV, 2 do
  local user_id, version = ARGV[i], tonumber(ARGV[i + 1])
  local receipt = redis.call('HGET', signups_key, user_id)
  local waiting_version = receipt and tonumber(receipt:match('^[12] (%d+)'))
  if not version then
    return redis.error_reply('ERR malformed version')
  end
  if receipt and not waiting_version then
    damaged = damaged + 1
  -- A note without a receipt has nothing to send.
  elseif not receipt or waiting_version <= version then
    settled[#settled + 1] = user_id
  end
end

local count = #settled > 0 and redis.call('ZREM', outbox_key, unpack(settled)) or 0
return { 'settled', count, damaged }
