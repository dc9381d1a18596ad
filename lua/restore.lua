#!lua
-- restore: put facts that MySQL holds back into Redis, where it lost them or holds older ones.
--
-- KEYS[1] {activity:ID}           hash  taken, sequence, …
-- KEYS[2] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[3] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV    user id, receipt        text; repeated for each fact, 1,000 of them at most
--
-- Returns {"restored", count, damaged}   how many receipts were written, and how many were left since what stands there
--                                        has another form
--
-- Example: KEYS {activity:42} …, ARGV alice "1 1796040000123 57"  ->  {"restored", 1, 0}
-- `taken` moves with the receipts, also above the capacity: nobody gets a place that somebody has. `sequence` never
-- falls below that of a receipt. It works on an activity that is not there too, which stays unknown to `reserve` until
-- `load` makes it known.

local activity_key, signups_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local receipt_form = '^([12]) (%d+) (%d+) ?%d*$'

local activity = redis.call('HMGET', activity_key, 'taken', 'sequence')
local taken, sequence = tonumber(activity[1] or '0'), tonumber(activity[2] or '0')
if not (taken and sequence) then
  return redis.error_reply('ERR malformed activity')
end

local receipts, settled, damaged = {}, {}, 0
for i = 1, #ARGV, 2 do
  local user_id, recorded = ARGV[i], ARGV[i + 1]
  local status, version, place = recorded:match(receipt_form)
  if not status then
    return redis.error_reply('ERR malformed receipt')
  end
  local receipt = redis.call('HGET', signups_key, user_id)
  local old_status, old_version
  if receipt then
    old_status, old_version = receipt:match(receipt_form)
  end
  if receipt and not old_status then
    damaged = damaged + 1
  elseif not receipt or tonumber(old_version) < tonumber(version) then
    receipts[#receipts + 1] = user_id
    receipts[#receipts + 1] = recorded
    settled[#settled + 1] = user_id
    taken = taken + (status == '1' and 1 or 0) - (old_status == '1' and 1 or 0)
    sequence = math.max(sequence, tonumber(place))
  end
end

if #settled > 0 then
  redis.call('HSET', activity_key, 'taken', math.max(taken, 0), 'sequence', string.format('%.0f', sequence))
  redis.call('HSET', signups_key, unpack(receipts))
  -- A note that waits belongs to the older fact, which lost.
  redis.call('ZREM', outbox_key, unpack(settled))
end
return { 'restored', #settled, damaged }
