-- SPDX-License-Identifier: Apache-2.0
--
-- Makes Wireshark and tshark read what `farcall capture` writes of rings, calls, doors, channels,
-- broadcasts and unix sockets: tshark -X lua_script:farcall.lua -r FILE, or a copy in
-- ~/.local/lib/wireshark/plugins. All numbers are in network order.

local farcall = Proto("farcall", "Messages of farcall")

local kinds = {
  [1] = "tcp", [2] = "udp", [3] = "unix", [4] = "unix-seq", [5] = "ring", [6] = "call",
  [7] = "door", [8] = "channel", [9] = "broadcast",
}
local roles = { [0] = "end", [1] = "client", [2] = "server", [3] = "writer", [4] = "reader" }
local told = { [1] = "by the sender", [2] = "by the receiver" }

local f = farcall.fields
f.version = ProtoField.uint8("farcall.version", "Version")
f.kind = ProtoField.uint8("farcall.kind", "Kind", base.DEC, kinds)
f.role = ProtoField.uint8("farcall.role", "Role of the end that told of it", base.DEC, roles)
f.told = ProtoField.uint8("farcall.told", "Told", base.DEC, told)
f.from = ProtoField.uint32("farcall.from", "From process")
f.to = ProtoField.uint32("farcall.to", "To process", base.DEC, { [0] = "not known" })
f.session = ProtoField.uint64("farcall.session", "Memory (inode)")
f.offset = ProtoField.uint64("farcall.offset", "Bytes before it")
f.size = ProtoField.uint32("farcall.size", "Bytes")
f.name = ProtoField.string("farcall.name", "Name")
f.data = ProtoField.bytes("farcall.data", "Message")

function farcall.dissector(buffer, packet, tree)
  if buffer:len() < 34 then return 0 end
  local name_bytes = buffer(32, 2):uint()
  local data = 34 + name_bytes
  local kind = kinds[buffer(1, 1):uint()] or "unknown"
  local sub = tree:add(farcall, buffer(0, math.min(data, buffer:len())))
  sub:add(f.version, buffer(0, 1))
  sub:add(f.kind, buffer(1, 1))
  sub:add(f.role, buffer(2, 1))
  sub:add(f.told, buffer(3, 1))
  sub:add(f.from, buffer(4, 4))
  sub:add(f.to, buffer(8, 4))
  sub:add(f.session, buffer(12, 8))
  sub:add(f.offset, buffer(20, 8))
  sub:add(f.size, buffer(28, 4))
  if buffer:len() < data then return buffer:len() end
  if name_bytes ~= 0 then sub:add(f.name, buffer(34, name_bytes)) end
  if buffer:len() > data then sub:add(f.data, buffer(data)) end
  packet.cols.protocol = "farcall"
  packet.cols.src = "pid " .. buffer(4, 4):uint()
  packet.cols.dst = buffer(8, 4):uint() == 0 and "?" or "pid " .. buffer(8, 4):uint()
  packet.cols.info = kind .. " " .. (name_bytes ~= 0 and buffer(34, name_bytes):string() .. " " or "")
    .. buffer(28, 4):uint() .. " bytes"
  return buffer:len()
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, farcall)
