-- Takes one request out of a bucket by the generic cell rate algorithm (GCRA), in its form
-- as a leaky bucket: the level falls steadily, and each admitted request raises it by one.
-- The clock is the server's, so that it is one for all gateways.
--
-- KEYS[1]  the bucket: its level in requests, and when that was, in microseconds
-- ARGV     requests a second, burst
-- returns  1 if the request is admitted, or 0; the level after it
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local level, at = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%S+)$')
level, at = tonumber(level) or 0, tonumber(at) or now
level = math.max(0, level - math.max(0, now - at) * rate / 1000000)

-- A sum of fractions is off by much less than a millionth of a request.
local admitted = level + 1 <= burst + 0.000001
if admitted then
  level = level + 1
end
-- A refused request changes nothing, unless the clock was set back: then the level would
-- not fall until the clock is where it was.
if admitted or now < at then
  local empty = math.ceil(level / rate * 1000) + 1
  redis.call('SET', KEYS[1], string.format('%.17g %.0f', level, now), 'PX', string.format('%.0f', empty))
end
return {admitted and 1 or 0, string.format('%.17g', level)}
