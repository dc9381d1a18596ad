#!lua
-- load: change what an activity's organiser set, or create the activity. Never touches the sign-ups.
--
-- KEYS[1] {activity:ID}   hash  capacity, taken, sequence, state, opens_at_ms, closes_at_ms, title
-- ARGV[1] capacity        whole number, places in all
-- ARGV[2] state           "open" or "paused"
-- ARGV[3] opens_at_ms     whole number, ms since 1970, or "" for none
-- ARGV[4] closes_at_ms    whole number, ms since 1970, or "" for none
-- ARGV[5] title           text
-- ARGV[6] create          "create", or "change" for an activity that must be there: an activity that Redis lost must
--                         not come back with fresh places
--
-- Returns one of
--   {"loaded", taken}
--   {"activity-not-found"}            nothing was changed
--   {"capacity-below-taken", taken}   nothing was changed
--
-- Example: KEYS {activity:42}, ARGV 100 open "" "" "Spring hike" create  ->  {"loaded", 0}

local activity_key = KEYS[1]
local capacity, state, opens_at_ms, closes_at_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local title, create = ARGV[5], ARGV[6]

local activity = redis.call('HMGET', activity_key, 'taken', 'sequence')
if not activity[1] and create ~= 'create' then
  return { 'activity-not-found' }
end
local taken, sequence = tonumber(activity[1] or '0'), tonumber(activity[2] or '0')
if not (capacity and taken and sequence and title) or (state ~= 'open' and state ~= 'paused') then
  return redis.error_reply('ERR malformed activity')
end
if capacity < taken then
  return { 'capacity-below-taken', taken }
end

redis.call(
  'HSET', activity_key,
  'capacity', ARGV[1], 'taken', taken, 'sequence', string.format('%.0f', sequence), 'state', state, 'title', title
)
for field, value in pairs({ opens_at_ms = opens_at_ms, closes_at_ms = closes_at_ms }) do
  if value == '' then
    redis.call('HDEL', activity_key, field)
  else
    redis.call('HSET', activity_key, field, value)
  end
end
return { 'loaded', taken }
