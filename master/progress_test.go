package master

import (
	"net"
	"strings"
	"testing"

	"posthaste/internal/config"
)

// Whoever comes after "reload" has ended meets the new configuration, each time.
func TestReloadIsOverWhenItReturns(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	names := []string{"one.example", "two.example"}
	for i := range 10 {
		s.dial("public/echo").ask("hello") // there is somebody to replace
		s.edit("main.cf", names[i%2], names[1-i%2])
		s.mustCommand("reload")
		if got := s.dial("public/echo").ask("hello"); got[1] != names[1-i%2] {
			t.Fatalf("reload %d has returned, and %s answers", i, got[1])
		}
	}
}

// A reload that master refuses fails the command, too.
func TestReloadRefusedIsSaid(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg, err := config.Load(s.path(""))
	if err != nil {
		t.Fatal(err)
	}
	before, ok := readProgress(cfg)
	if !ok {
		t.Fatal("master does not say how far it is")
	}
	s.edit("master.cf", echoService, echoService+taken.Addr().String()+" inet n - n - 5 echo\n")
	status, text := s.command("reload")
	if status == 0 || !strings.Contains(text, errReloadRefused.Error()) {
		t.Errorf("reload: %d %s", status, text)
	}
	if p, _ := readProgress(cfg); p.refused <= before.begun || p.ended < p.refused {
		t.Errorf("progress %+v after %+v", p, before)
	}
	s.dial("public/echo").ask("hello")
}
