package proto

import (
	"reflect"
	"testing"

	"posthaste/internal/ipc"
)

// all is one of each message; TestAllMessages knows whether one is missing.
var all = []ipc.Message{
	&Lease{}, &LeaseReply{}, &Submit{}, &SubmitReply{}, &Chunk{}, &ChunkReply{}, &Abort{},
	&Attach{}, &Entries{}, &Record{}, &RecordReply{}, &Locate{}, &LocateReply{}, &Hand{}, &Hands{}, &HandsReply{}, &Shares{}, &SharesReply{}, &Notes{}, &NotesReply{}, &Due{}, &DueReply{}, &Page{}, &PageReply{},
	&Deliver{}, &DeliverReply{}, &Inventory{}, &Dismiss{}, &Detach{},
	&Rewrite{}, &RewriteReply{}, &Resolve{}, &ResolveReply{}, &Stale{},
	&Notify{}, &NotifyReply{},
	&List{}, &ListReply{}, &Command{}, &CommandReply{}, &Explain{}, &ExplainReply{}, &Shape{}, &ShapeReply{}, &Select{}, &SelectReply{},
	&Override{}, &OverrideReply{},
	&Nodes{}, &NodesReply{}, &Forward{}, &ForwardReply{}, &Carry{}, &Owned{}, &OwnedReply{},
	&Sources{}, &SourcesReply{}, &Standing{}, &StandingReply{},
	&Backlog{}, &BacklogReply{},
	&Events{}, &EventsReply{}, &EventStatus{}, &EventStatusReply{}, &EventOrder{}, &EventOrderReply{},
	&Probe{}, &ProbeReply{}, &Probed{},
	&Milter{}, &MilterReply{},
	&Lookup{}, &LookupReply{},
	&Spend{}, &SpendReply{}, &Usage{}, &UsageReply{},
	&Present{}, &Measure{}, &Measures{}, &MeasuresReply{}, &Gather{}, &GatherReply{},
	&SuppressAsk{}, &SuppressAnswer{}, &SuppressTell{}, &SuppressTold{}, &ReturnPath{}, &ReturnPathReply{},
	&SuppressChange{}, &SuppressChanged{}, &SuppressPage{}, &SuppressPageReply{},
}

// fresh is an empty message of m's type.
func fresh(m ipc.Message) ipc.Message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(ipc.Message)
}

// FuzzDecode: no bytes make a decoder panic.
func FuzzDecode(f *testing.F) {
	for _, m := range all {
		f.Add(m.Kind(), full(f, m).Append(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint16, b []byte) {
		for _, m := range all {
			if m.Kind() == kind {
				fresh(m).Decode(b)
			}
		}
	})
}
