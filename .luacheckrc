-- The scripts run inside Redis.
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV" }
max_line_length = 120
