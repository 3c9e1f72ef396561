package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// What an operator looks for is on the page where it is looked for: on the first page what hurts and what may soon, on that of a message
// all of its way and all that can be done to it, and a search finds by queue ID, Message-ID, reply and time; track.TestSame has the others.
func TestNouns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.throttle()
	w.sampled()
	w.count()
	b := w.login("ann")
	page := func(path string, nouns ...string) {
		t.Helper()
		status, text, _ := b.do("GET", path, nil)
		for _, n := range nouns {
			if status != http.StatusOK || !strings.Contains(text, n) {
				t.Errorf("%s: %d, there is no %q\n%s", path, status, n, text)
			}
		}
	}
	page("/", "Messages in", "Recipients delivered to", "Attempts deferred", "Recipients bounced", "What came in and went out, in the last day", "Recipients that wait, in the last day",
		"The oldest is", ">incoming<", ">active<", ">deferred<", ">hold<", "What hurts", "answers 421 4.7.0 to 83 % of sessions; window 2 of 20; 4,311 recipients wait, the oldest for",
		">Disk: ", ">Spool<", ">Log<", ">Certificate", "What <code>posthaste check -v</code> advises", "Mistakes", "What may be unwise")
	acts := func(path string, words ...string) {
		t.Helper()
		for i := range words {
			words[i] = `action="/do/` + words[i] + `"`
		}
		page(path, words...)
	}
	acts("/message/"+queueID, "hold", "retry", "requeue", "return", "delete")
	page("/message/"+queueID, "Why it is in the queue", "<dt>Sender</dt>", "<dt>Client</dt>", "<dt>Attempts</dt>", "<dt>Next attempt</dt>", "Recipients that have not got it", "host said: 450", "What the log says", "status=deferred")
	w.set(func() { w.item.Queue = "hold" })
	acts("/message/"+queueID, "release")
	for _, q := range []string{"q=" + queueID, "q=" + url.QueryEscape("<"+evil+">"), "reply=450", "text=STATUS%3Ddeferred", "q=" + queueID + "&text=450+", "since=2026-11-24T10:00&until=2026-11-24T10:01", "q=" + queueID + "&since=2026-11-24T09:00"} {
		status, text, _ := b.do("GET", apiPath+"/search?"+q, nil)
		if status != http.StatusOK || !strings.Contains(text, `"queue_id":"`+queueID+`"`) {
			t.Errorf("search %s: %d %s", q, status, text)
		}
	}
	if status, text, _ := b.do("GET", apiPath+"/search?q="+queueID+"&text=nowhere", nil); status != http.StatusOK || strings.Contains(text, queueID) {
		t.Errorf("search for a text that is nowhere: %d %s", status, text)
	}
	// The queue does not have the lines of the log.
	if _, text, _ := b.do("GET", "/search?text=status%3Ddeferred", nil); strings.Contains(text, "In the queue") || !strings.Contains(text, queueID) || !strings.Contains(text, `name="text" value="status=deferred"`) {
		t.Errorf("page of a search for a text:\n%s", text)
	}
}
