#!lua
-- load: change what an activity's organiser set, or make the activity known. Never touches the sign-ups.
--
-- KEYS[1] {activity:ID}   hash  capacity, taken, sequence, state, opens_at_ms, closes_at_ms, title
-- ARGV[1] capacity        whole number, places in all
-- ARGV[2] state           "open" or "paused"
-- ARGV[3] opens_at_ms     whole number, ms since 1970, or "" for none
-- ARGV[4] closes_at_ms    whole number, ms since 1970, or "" for none
-- ARGV[5] title           text
-- ARGV[6] verb            "change" for an activity that must be there, since one that Redis lost must not come back
--                         with fresh places; or "launch" for one whose sign-ups were put into Redis before
-- ARGV[7] taken           whole number, for "launch" only: people who hold a place
-- ARGV[8] sequence        whole number, for "launch" only: at least the highest that was granted
--
-- Returns one of
--   {"loaded", taken}
--   {"activity-not-found"}            nothing was changed
--   {"capacity-below-taken", taken}   nothing was changed; never for "launch"
--   {"archived"}                      nothing was changed
--
-- Example: KEYS {activity:42}, ARGV 100 open "" "" "Spring hike" launch 0 0  ->  {"loaded", 0}
-- An activity without a capacity is not there yet: other scripts take it for unknown.

local activity_key = KEYS[1]
local capacity, state, opens_at_ms, closes_at_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local title, verb = ARGV[5], ARGV[6]

local activity = redis.call('HMGET', activity_key, 'capacity', 'taken', 'sequence', 'archived_at_ms')
local is_there, archived_at_ms = activity[1], activity[4]
local taken, sequence = tonumber(activity[2] or '0'), tonumber(activity[3] or '0')
if archived_at_ms then
  return { 'archived' }
end
if verb == 'launch' and not is_there then
  taken, sequence = tonumber(ARGV[7]), math.max(tonumber(ARGV[8]), sequence)
elseif not is_there then
  return { 'activity-not-found' }
end
if not (capacity and taken and sequence and title) or (state ~= 'open' and state ~= 'paused') then
  return redis.error_reply('ERR malformed activity')
end
if capacity < taken and verb ~= 'launch' then
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
