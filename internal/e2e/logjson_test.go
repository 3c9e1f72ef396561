package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// With maillog_format = json each line is one object with the same keys at its
// beginning. The queue ID leads from a message's acceptance to its fate, which
// has what the next host said, and from there to the report of it.
func TestLogJSON(t *testing.T) {
	t.Parallel()
	d := newLogDay(t, "maillog_format = json\n", func(*system) {})
	d.live()
	stories := make(map[string][]map[string]any)
	// On a slow machine a line may come too late for its place; its time is right.
	lines := slices.Sorted(strings.Lines(d.log()))
	for _, line := range lines {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(o["time"])); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		process, _ := o["process"].(string)
		_, pid := o["pid"].(float64)
		level, _ := o["level"].(string)
		text, _ := o["text"].(string)
		if !strings.HasPrefix(process, "postfix/") || !pid || text == "" || o["host"] == "" || level == "info" != !strings.HasPrefix(text, level+": ") {
			t.Errorf("not as every line is: %s", line)
		}
		if id, ok := o["queue_id"].(string); ok {
			if !strings.Contains(text, id+": ") {
				t.Errorf("another ID in the text: %s", line)
			}
			stories[id] = append(stories[id], o)
		}
	}
	// tell is a message's story: events, with what tells them apart.
	tell := func(id string) (story []string) {
		for _, o := range stories[id] {
			s := fmt.Sprint(o["event"])
			for _, key := range []string{"client_address", "sasl_username", "message_id", "from", "to", "status", "dsn", "reason", "kind", "action"} {
				if v, ok := o[key]; ok {
					s += fmt.Sprintf(" %s=%v", key, v)
				}
			}
			story = append(story, s)
		}
		return story
	}
	user := d.user + "@local.test"
	var report string
	found := false
	for id, lines := range stories {
		if lines[0]["sasl_username"] != "joe" {
			continue
		}
		found = true
		delivery := "delivery message_id=<three@from.test> from=" + user + " "
		want := []string{
			"client client_address=127.0.0.3 sasl_username=joe",
			"message-id message_id=<three@from.test>",
			"queue active from=" + user,
			delivery + "to=gone@far.test status=bounced dsn=5.1.1 reason=host 127.0.0.1[127.0.0.1] said: 550 5.1.1 no such user (in reply to RCPT TO command)",
			delivery + "to=slow@far.test status=deferred dsn=4.2.1 reason=host 127.0.0.1[127.0.0.1] said: 450 4.2.1 later (in reply to RCPT TO command)",
			delivery + "to=ok@far.test status=sent dsn=2.0.0 reason=250 2.0.0 Ok: sunk",
			"notification kind=sender non-delivery notification",
		}
		if got := tell(id); !slices.Equal(got, want) {
			t.Errorf("the story of %s:\n%s\nwant:\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		report, _ = lines[len(lines)-1]["notification_id"].(string)
	}
	if !found {
		t.Error("no message of joe's")
	}
	want := []string{"message-id message_id=<" + report + "@mta.test>", "queue active from=", "delivery message_id=<" + report + "@mta.test> from= to=" + user + " status=sent dsn=2.0.0 reason=delivered to mailbox", "removed"}
	if got := tell(report); !slices.Equal(got, want) {
		t.Errorf("the story of the report %s:\n%s\nwant:\n%s", report, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
