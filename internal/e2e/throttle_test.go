package e2e

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A provider that has enough of us says so at MAIL, with 421. It is not asked again and
// again: after a few attempts it is left alone, and all that waits for it says why.
func TestProviderHasEnough(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	// It answers when all mail is there: a destination without mail is forgotten, and what it has answered
	// to messages that come one by one with it.
	sent := make(chan struct{})
	answer := sync.OnceFunc(func() { close(sent) })
	t.Cleanup(answer)
	provider := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "MAIL") {
			asked.Add(1)
			<-sent
			return "421 4.7.28 too much of you"
		}
		return ""
	})
	s := newSystem(t, options{main: provider.relayhost()})
	const messages = 200
	for range messages {
		s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n")
	}
	answer()
	s.waitLogN(`to=<b@to\.test>.*dsn=4\.7\.28, status=deferred \((?:delivery temporarily suspended: )?host 127\.0\.0\.1\[127\.0\.0\.1\] said: 421 4\.7\.28 too much of you`, messages)
	// The window is five at first: as many failures in a row are its death.
	if n := asked.Load(); n > 15 {
		t.Errorf("the provider was asked %d times for %d messages", n, messages)
	}
	id := s.queueID(`postfix/error\[\d+\]: (\w+): to=<b@to\.test>`)
	if out := s.mustTool("explain", id); !strings.Contains(out, "421 4.7.28 too much of you") {
		t.Errorf("explain: %s", out)
	}
}
