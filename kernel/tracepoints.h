/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of a call: sent by its client; received and answered by its server. A client waits
 * for one answer at a time, so its thread id tells which call is meant. Channels and handles go by
 * the number that debugfs shows.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM stplr

#if !defined(STPLR_TRACEPOINTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define STPLR_TRACEPOINTS_H

#include <linux/tracepoint.h>

TRACE_EVENT(stplr_send,
	TP_PROTO(u32 channel, int priority, u64 length, bool wants_reply),
	TP_ARGS(channel, priority, length, wants_reply),
	TP_STRUCT__entry(
		__field(u32, channel)
		__field(int, priority)
		__field(u64, length)
		__field(bool, wants_reply)
	),
	TP_fast_assign(
		__entry->channel = channel;
		__entry->priority = priority;
		__entry->length = length;
		__entry->wants_reply = wants_reply;
	),
	TP_printk("channel=%u priority=%d length=%llu wants_reply=%d", __entry->channel,
		  __entry->priority, __entry->length, __entry->wants_reply)
);

TRACE_EVENT(stplr_receive,
	TP_PROTO(u32 channel, int client, u64 length),
	TP_ARGS(channel, client, length),
	TP_STRUCT__entry(
		__field(u32, channel)
		__field(int, client)
		__field(u64, length)
	),
	TP_fast_assign(
		__entry->channel = channel;
		__entry->client = client;
		__entry->length = length;
	),
	TP_printk("channel=%u client=%d length=%llu", __entry->channel, __entry->client,
		  __entry->length)
);

TRACE_EVENT(stplr_reply,
	TP_PROTO(u32 channel, int client, int outcome, u64 length),
	TP_ARGS(channel, client, outcome, length),
	TP_STRUCT__entry(
		__field(u32, channel)
		__field(int, client)
		__field(int, outcome)
		__field(u64, length)
	),
	TP_fast_assign(
		__entry->channel = channel;
		__entry->client = client;
		__entry->outcome = outcome;
		__entry->length = length;
	),
	TP_printk("channel=%u client=%d outcome=%d length=%llu", __entry->channel,
		  __entry->client, __entry->outcome, __entry->length)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE tracepoints
#include <trace/define_trace.h>
