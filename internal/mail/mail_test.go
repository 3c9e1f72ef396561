package mail

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/pack"
)

func TestQueueID(t *testing.T) {
	t.Parallel()
	id := MakeQueueID(time.Unix(1700000000, 123456000), 12345)
	if got := string(id); got != "4dJS2814vsz4r3" && len(got) < 12 {
		t.Errorf("ID %q", got)
	}
	at, n, err := id.Parse()
	if err != nil || n != 12345 || at.UnixMicro() != 1700000000123456 {
		t.Errorf("parsed: %v %d %v", at, n, err)
	}
	for _, bad := range []QueueID{"", "z", "076AF9D46E1", "0000000000z", "000000000z1", "0A0000" + "0000z1", "a b", "0000000000zz",
		"000000000000000000z01", "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyzzzzz1"} {
		if _, _, err := bad.Parse(); err == nil {
			t.Errorf("%q passes for one of our IDs", bad)
		}
	}
}

func TestQueueIDValid(t *testing.T) {
	t.Parallel()
	for id, want := range map[QueueID]bool{"076AF9D46E1": true, "4dJS2814vsz4r3": true, "": false, "../x": false, "a b": false,
		"a/b": false, "x\n": false, QueueID(make([]byte, 65)): false} {
		if id.Valid() != want {
			t.Errorf("%q: valid is %v, want %v", id, !want, want)
		}
	}
}

func TestQueueIDProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		us := rapid.Int64Range(0, 1<<52).Draw(t, "us")
		n := rapid.Uint64().Draw(t, "n")
		id := MakeQueueID(time.UnixMicro(us), n)
		at, got, err := id.Parse()
		if err != nil || got != n || at.UnixMicro() != us || !id.Valid() || id.Number() != n {
			t.Fatalf("%s: %v %d %v", id, at, got, err)
		}
	})
}

// FuzzQueueID: what parses is exactly what we would have made.
func FuzzQueueID(f *testing.F) {
	f.Add("4dJS2814vsz4r3")
	f.Fuzz(func(t *testing.T, s string) {
		at, n, err := QueueID(s).Parse()
		if err == nil && MakeQueueID(at, n) != QueueID(s) {
			t.Errorf("%q parses and is not one of ours", s)
		}
	})
}

func sampleEnvelope() Envelope {
	return Envelope{ID: MakeQueueID(time.Unix(1700000000, 0), 7), Arrival: time.UnixMicro(1700000000000001), Sender: "a@b.test",
		Size: 99, Body: Body8Bit | BodyDots, EnvID: "env", MessageID: "<m@x>", Ret: dsn.RetHeaders,
		Client: Client{Name: "n", Addr: "192.0.2.1", Port: "77", Helo: "h", Proto: "ESMTP"},
		SASL:   SASL{Method: "PLAIN", Username: "u", Sender: "s"}, Reverse: "r", Trace: TraceProbe, RewriteContext: "remote",
		LogIdent: "I", Filter: "smtp:x", Redirect: "q@x", VERP: "+=", Pool: "p", Tenant: "acme", Campaign: "spring", List: "n", RequireTLS: true, TLSOptional: true, Forwarded: true, SendAt: time.UnixMicro(1800000000000001)}
}

// Every field of an envelope survives being stored: a field that is added and
// forgotten in Append or Decode fails here.
func TestEnvelopeStored(t *testing.T) {
	t.Parallel()
	want := sampleEnvelope()
	v := reflect.ValueOf(want)
	for i := range v.NumField() {
		if v.Type().Field(i).Name != "Recipients" && v.Field(i).IsZero() {
			t.Errorf("the sample has no %s", v.Type().Field(i).Name)
		}
	}
	var got Envelope
	if err := got.Decode(want.Append(nil)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v\n%v", got, want, err)
	}
	var zero Envelope
	if err := zero.Decode(nil); err == nil {
		t.Error("an envelope without an ID is accepted")
	}
}

func TestRecipientsStored(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Recipient {
			return Recipient{Address: rapid.String().Draw(t, "a"), Original: rapid.String().Draw(t, "o"),
				ORCPT: rapid.String().Draw(t, "p"), Notify: dsn.Notify(rapid.IntRange(0, 8).Draw(t, "n"))}
		})).Draw(t, "list")
		b := AppendRecipients(nil, list)
		from := rapid.IntRange(0, len(list)).Draw(t, "from")
		to := rapid.IntRange(from, len(list)+2).Draw(t, "to")
		got, err := DecodeRecipients(nil, b, from, to)
		want := list[from:min(to, len(list))]
		if err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("[%d:%d]: got %v want %v, %v", from, to, got, want, err)
		}
		if all, err := DecodeRecipients(nil, b, 0, -1); err != nil || len(all) != len(list) {
			t.Fatalf("all: %d of %d, %v", len(all), len(list), err)
		}
	})
}

func TestOutcomeStored(t *testing.T) {
	t.Parallel()
	want := Outcome{Rcpt: 3, Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "r", Relay: "y", MTA: "m", Owner: "o@a", DiagType: "smtp",
		DiagText: "550 x", Passed: true, When: time.UnixMicro(1700000000000001),
		Parts: []Part{{Address: "p@a", Action: dsn.Failed, Status: dsn.S(5, 2, 0), Reason: "r", Relay: "y", MTA: "m", DiagType: "x-unix", DiagText: "no",
			Owner: "o@b", More: 7, Told: true}}}
	for _, v := range []reflect.Value{reflect.ValueOf(want), reflect.ValueOf(want.Parts[0])} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("the sample has no %s", v.Type().Field(i).Name)
			}
		}
	}
	if got := storedAgain(t, want); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v want %+v", got, want)
	}
}

// storedAgain is an outcome as it is read when it has been stored.
func storedAgain(t interface{ Fatalf(string, ...any) }, o Outcome) (got Outcome) {
	r := pack.NewReader(o.Append(nil, 'o'))
	if !r.Next() {
		t.Fatalf("nothing is stored of %+v", o)
	}
	if err := got.Decode(r.Bytes()); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return got
}

// An outcome that was stored before there were parts had the address of the
// only one.
func TestOutcomeOfOld(t *testing.T) {
	t.Parallel()
	b := pack.Int(nil, '#', 2)
	b = pack.Uint(b, 'a', dsn.Deferred)
	b = pack.String(b, 'f', "final@a.test")
	b = pack.String(b, 'r', "later")
	var got Outcome
	if err := got.Decode(b); err != nil {
		t.Fatal(err)
	}
	want := Outcome{Rcpt: 2, Action: dsn.Deferred, Reason: "later", Parts: []Part{{Address: "final@a.test", Action: dsn.Deferred, Reason: "later"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, not %+v", got, want)
	}
}

// FuzzOutcome: what can be read can be stored, and is the same then.
func FuzzOutcome(f *testing.F) {
	o := Outcome{Rcpt: 1, Action: dsn.Failed, Parts: []Part{{Address: "a", More: -1, Told: true}, {}}}
	r := pack.NewReader(o.Append(nil, 'o'))
	r.Next()
	f.Add(r.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var o Outcome
		if o.Decode(b) == nil {
			if again := storedAgain(t, o); !reflect.DeepEqual(again, o) {
				t.Errorf("stored again it is another: %+v, %+v", o, again)
			}
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	e := sampleEnvelope()
	f.Add(AppendRecipients(e.Append(nil), []Recipient{{Address: "a", Notify: dsn.NotifyDelay}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Envelope
		if e.Decode(b) == nil {
			var again Envelope
			if err := again.Decode(e.Append(nil)); err != nil || !reflect.DeepEqual(e, again) {
				t.Errorf("stored again it is another: %+v, %+v, %v", e, again, err)
			}
		}
		DecodeRecipients(nil, b, 0, 100)
	})
}
