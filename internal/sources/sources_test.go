package sources

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/proto"
)

var sample = []proto.SourceInfo{
	{Name: "mta1", Spec: "address=192.0.2.1", Pools: []proto.SourcePool{{Name: "all", Weight: 1}, {Name: "news", Weight: 9}}},
	{Name: "mta2", Spec: "address=192.0.2.2", Day: 3, Warmup: 200, Wait: true,
		Limits: []proto.SourceLimit{{Level: "provider", Name: "big", Sent: 17, Warmup: 200, Text: "17 of 200 recipients of its warm-up today", Waiting: 2}},
		Dests:  []proto.SourceDest{{Transport: "smtp", Dest: "a.test", Until: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), Reason: "4.7.1 blocked"}}},
	{Name: "mta3", Suspended: "source mta3 is suspended by ann since noon"},
}

func TestWrite(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for i := range sample {
		write(&b, &sample[i])
	}
	want := `mta1: address=192.0.2.1
  in all (weight 1), news (weight 9)
mta2: address=192.0.2.2; day 3 of its warm-up, 200 recipients at each provider, what is over goes the next day
  provider big: 17 of 200 recipients of its warm-up today
  rests at a.test (smtp) until ` + sample[1].Dests[0].Until.Local().Format(time.DateTime) + `: 4.7.1 blocked
mta3: no mail has gone from it since the queue manager started
  source mta3 is suspended by ann since noon
`
	if b.String() != want {
		t.Errorf("%s, want\n%s", b.String(), want)
	}
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for i := range sample {
		writeJSON(&b, &sample[i])
	}
	want := `{"name":"mta1","spec":"address=192.0.2.1","pools":[{"name":"all","weight":1},{"name":"news","weight":9}],"limits":[],"dead":[]}
{"name":"mta2","spec":"address=192.0.2.2","pools":[],"day":3,"per_day":200,"wait":true,"limits":[{"level":"provider","name":"big","sent":17,"warmup":200,"text":"17 of 200 recipients of its warm-up today","waiting":2}],"dead":[{"transport":"smtp","destination":"a.test","until":"2026-11-28T12:00:00Z","reason":"4.7.1 blocked"}]}
{"name":"mta3","spec":"","pools":[],"suspended":"source mta3 is suspended by ann since noon","limits":[],"dead":[]}
`
	if b.String() != want {
		t.Errorf("%s, want\n%s", b.String(), want)
	}
}

func TestChosen(t *testing.T) {
	t.Parallel()
	if list, err := chosen(sample, nil); err != nil || len(list) != 3 {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := chosen(sample, []string{"mta3", "mta1"}); err != nil || len(list) != 2 || list[0].Name != "mta3" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := chosen(sample, []string{"mta9"}); cli.Status(err) != cli.ExitNoInput {
		t.Errorf("%v", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	var out, err bytes.Buffer
	if status := Run("posthaste sources", []string{"-x"}, &out, &err); status != cli.ExitUsage || !strings.Contains(err.String(), "usage: posthaste sources") {
		t.Errorf("%d: %s", status, err.String())
	}
}
