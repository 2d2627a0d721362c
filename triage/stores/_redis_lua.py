"""The scripts Redis runs: each of them happens as a whole or not at all.

Keys, all in one slot: `p:r:K` a run's row, `p:e:K` its events, `p:p:K` the large values it uses, `p:b:D` a
large value, `p:u:D` its users, `p:runs`, `p:s:S` (of a status) and `p:ended` the runs in order, `p:tokens`
who waits with a token, `p:n` a count. K, D and S are digests.
"""

from __future__ import annotations

_CLOCK = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local p = KEYS[1]
local function seconds(value) return string.format('%.6f', value) end
local function by_status(status) return p .. ':s:' .. redis.sha1hex(status) end
"""

APPEND = (
    _CLOCK
    + """
local i = 1
local function take() local value = ARGV[i]; i = i + 1; return value end
local outcomes = {}
for g = 1, tonumber(take()) do
    local k, at, epoch, count = take(), tonumber(take()), take(), tonumber(take())
    local lease, status, token, updated = take(), take(), take(), take()
    local head, run_id, agent, parent, started = take(), take(), take(), take(), take()
    local first = i
    i = i + count
    local pieces = tonumber(take())
    local piece = i
    i = i + 2 * pieces
    local rk, ek = p .. ':r:' .. k, p .. ':e:' .. k
    local row = redis.call('HMGET', rk, 'events', 'epoch', 'status', 'token', 'n')
    local stands, good = 0, false
    if not row[1] then
        good = at == 0 and epoch == '0' and head == '1'
    elseif row[2] == epoch and at <= tonumber(row[1]) then
        good = true
        if at < tonumber(row[1]) then
            local found = redis.call('LRANGE', ek, at, at + count - 1)
            stands = #found
            for j = 1, stands do
                if found[j] ~= ARGV[first + j - 1] then good = false end
            end
        end
    end
    if not good then
        outcomes[g] = (row[1] or '-') .. ' ' .. (row[2] or '-')
    elseif stands == count then
        redis.call('INCR', p .. ':again')
        outcomes[g] = ''
    else
        outcomes[g] = ''
        for from = first + stands, first + count - 1, 1000 do
            redis.call('RPUSH', ek, unpack(ARGV, from, math.min(from + 999, first + count - 1)))
        end
        redis.call('HSET', rk, 'events', at + count, 'updated', updated)
        local n = row[5]
        if not row[1] then
            n = redis.call('INCR', p .. ':n')
            redis.call('HSET', rk, 'n', n, 'run_id', run_id, 'agent', agent, 'parent', parent,
                'started', started, 'epoch', '0', 'claims', '0', 'lease', '', 'claimant', '',
                'token', '', 'status', '')
            redis.call('ZADD', p .. ':runs', n, k)
        end
        if status ~= '' then
            if row[3] and row[3] ~= '' then redis.call('ZREM', by_status(row[3]), k) end
            redis.call('ZADD', by_status(status), n, k)
            if row[4] and row[4] ~= '' then redis.call('HDEL', p .. ':tokens', row[4]) end
            if token ~= '' then redis.call('HSET', p .. ':tokens', token, k) end
            redis.call('HSET', rk, 'status', status, 'token', token)
            if status ~= 'running' then
                redis.call('HSET', rk, 'claims', '0', 'lease', '')
                if status ~= 'suspended' then redis.call('ZADD', p .. ':ended', seconds(now), k) end
            end
        end
        local is = status
        if is == '' then is = row[3] end
        if is == 'running' and lease ~= '' then
            redis.call('HSET', rk, 'lease', seconds(now + tonumber(lease)))
        end
        for j = piece, piece + 2 * pieces - 1, 2 do
            redis.call('SETNX', p .. ':b:' .. ARGV[j], ARGV[j + 1])
            redis.call('SADD', p .. ':u:' .. ARGV[j], k)
            redis.call('SADD', p .. ':p:' .. k, ARGV[j])
        end
    end
end
return outcomes
"""
)

READ = """
local p, k = KEYS[1], ARGV[1]
return {redis.call('HGET', p .. ':r:' .. k, 'events'), redis.call('LRANGE', p .. ':e:' .. k, ARGV[2], -1)}
"""

OWN = (
    _CLOCK
    + """
local k = ARGV[1]
local rk = p .. ':r:' .. k
local row = redis.call('HMGET', rk, 'status', 'events', 'epoch', 'claims', 'lease', 'claimant', 'n')
for j = 1, 6 do
    if row[j] ~= ARGV[1 + j] then return 0 end
end
if ARGV[8] ~= row[1] then
    redis.call('ZREM', by_status(row[1]), k)
    redis.call('ZADD', by_status(ARGV[8]), row[7], k)
end
redis.call('HSET', rk, 'status', ARGV[8], 'epoch', ARGV[10], 'claims', ARGV[11], 'lease', ARGV[12],
    'claimant', ARGV[13])
return 1
"""
)

PRUNE = (
    _CLOCK
    + """
local border, keep, most = '+inf', tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[1] ~= '' then border = '(' .. seconds(now - tonumber(ARGV[1])) end
local spare = redis.call('ZCARD', p .. ':ended') - keep
if spare <= 0 then return 0 end
local gone = redis.call('ZRANGEBYSCORE', p .. ':ended', '-inf', border, 'LIMIT', 0, math.min(spare, most))
for _, k in ipairs(gone) do
    for _, digest in ipairs(redis.call('SMEMBERS', p .. ':p:' .. k)) do
        redis.call('SREM', p .. ':u:' .. digest, k)
        if redis.call('SCARD', p .. ':u:' .. digest) == 0 then redis.call('DEL', p .. ':b:' .. digest) end
    end
    redis.call('ZREM', by_status(redis.call('HGET', p .. ':r:' .. k, 'status')), k)
    redis.call('ZREM', p .. ':runs', k)
    redis.call('ZREM', p .. ':ended', k)
    redis.call('DEL', p .. ':r:' .. k, p .. ':e:' .. k, p .. ':p:' .. k)
end
return #gone
"""
)
