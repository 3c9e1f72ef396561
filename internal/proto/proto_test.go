package proto

import (
	"reflect"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
)

var all = []ipc.Message{&Lease{}, &LeaseReply{}, &Submit{}, &SubmitReply{}, &Chunk{}, &ChunkReply{}, &Abort{}, &Attach{},
	&Entries{}, &Record{}, &RecordReply{}, &Locate{}, &LocateReply{}, &Deliver{}, &DeliverReply{}, &Inventory{}, &Dismiss{}, &Rewrite{},
	&RewriteReply{}, &Resolve{}, &ResolveReply{}, &Stale{}, &Notify{}, &NotifyReply{}, &List{}, &ListReply{}, &Command{},
	&CommandReply{}, &Explain{}, &ExplainReply{}, &Shape{}, &ShapeReply{}, &Select{}, &SelectReply{}, &Probe{}, &ProbeReply{}, &Probed{}, &Milter{}, &MilterReply{},
	&Lookup{}, &LookupReply{},
	&Override{}, &OverrideReply{}, &Present{}, &Measure{}, &Measures{}, &MeasuresReply{}}

// Every field of every message survives the journey: a field that is added
// and forgotten in Append or Decode fails here.
func TestEveryFieldTravels(t *testing.T) {
	t.Parallel()
	kinds := map[uint16]ipc.Message{}
	for _, m := range all {
		if other, twice := kinds[m.Kind()]; twice {
			t.Errorf("%T and %T have the same kind", m, other)
		}
		kinds[m.Kind()] = m
		n := 1
		fill(reflect.ValueOf(m).Elem(), &n)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(ipc.Message)
		if err := got.Decode(m.Append(nil)); err != nil {
			t.Errorf("%T: %v", m, err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%T:\n got %+v\nwant %+v", m, got, m)
		}
	}
}

// fill gives every field a value that is not zero and unlike the others.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMicro(1700000000000000 + int64(*n))))
		return
	case mail.QueueID:
		v.SetString(string(mail.MakeQueueID(time.Unix(1700000000, 0), uint64(*n))))
		return
	case dsn.Status:
		v.Set(reflect.ValueOf(dsn.S(5, uint16(*n%1000), 1)))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text" + string(rune('a'+*n%26)))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(1 + *n%3))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	}
}

// FuzzDecode: no bytes make a decoder panic.
func FuzzDecode(f *testing.F) {
	for _, m := range all {
		n := 1
		v := reflect.New(reflect.TypeOf(m).Elem())
		fill(v.Elem(), &n)
		f.Add(m.Kind(), v.Interface().(ipc.Message).Append(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint16, b []byte) {
		for _, m := range all {
			if m.Kind() == kind {
				reflect.New(reflect.TypeOf(m).Elem()).Interface().(ipc.Message).Decode(b)
			}
		}
	})
}
