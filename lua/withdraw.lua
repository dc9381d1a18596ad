#!lua
-- withdraw: cancel a sign-up that is one too many, and note in the same step that MySQL does not know it yet.
--
-- KEYS[1] {activity:ID}           hash  capacity, taken, …
-- KEYS[2] {activity:ID}:signups   hash  user id -> receipt: "status version sequence [signed_up_at_ms]"
-- KEYS[3] {activity:ID}:outbox    zset  user id, scored by the time (ms) from which the relay may pick the note up
-- ARGV[1] user id                 text
-- ARGV[2] version                 whole number, of the fact that found no place in MySQL
--
-- Returns one of
--   {"withdrawn"}
--   {"changed"}   the user's sign-up is another by now, or everybody fits; nothing was changed
--
-- Example: KEYS {activity:42} …, ARGV alice 1796040000123  ->  {"withdrawn"}
-- Only on an operator's word: the user was granted the place. The note is due at once.

local activity_key, signups_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local user_id, expected_version = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local activity = redis.call('HMGET', activity_key, 'capacity', 'taken')
local capacity, taken = tonumber(activity[1] or ''), tonumber(activity[2] or '')
local receipt = redis.call('HGET', signups_key, user_id) or ''
local status, version, sequence, signed_up_at_ms = receipt:match('^([12]) (%d+) (%d+) ?(%d*)$')
if not expected_version then
  return redis.error_reply('ERR malformed version')
end
if not (capacity and taken) or taken <= capacity or status ~= '1' or tonumber(version) ~= expected_version then
  return { 'changed' }
end

if signed_up_at_ms == '' then
  signed_up_at_ms = version
end
local next_version = math.max(expected_version + 1, now_ms)
redis.call('HSET', activity_key, 'taken', taken - 1)
redis.call('HSET', signups_key, user_id, string.format('2 %.0f %s %s', next_version, sequence, signed_up_at_ms))
redis.call('ZADD', outbox_key, now_ms, user_id)
return { 'withdrawn' }
