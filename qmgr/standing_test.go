package qmgr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/standing"
	"posthaste/internal/statedir"
	"posthaste/internal/testwait"
)

// How providers take mail is told with what came back of it; and without that, and why, while the suppress service does not answer.
func TestStanding(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) { r.Provider, r.ProviderLimits = "big", "concurrency=9" }, "a.test")
	st.suppress = ipc.Unix(st.path("suppress"))
	back := new(standing.Book)
	back.Count(time.Now(), "big", "", standing.Complaint)
	back.Count(time.Now(), "other", "mta1", standing.Later)
	stop := st.serve("suppress", func(_ *ipc.Conn, r *ipc.Request) { r.Reply(&proto.StandingReply{Book: back.Encode()}) })
	st.run()
	st.waitAttached(1)
	for i, words := range [][]string{{"ok", "defer"}, {"ok", "ok"}, {"refuse", "fail"}, {"ok"}} {
		to := []string{"x@a.test", "y@a.test"}
		if i == 3 {
			to = []string{"x@elsewhere.test"} // that is nobody's
		}
		st.arrive("s@from.test", to...)
		for range 2 { // a delivery may have one recipient
			o := smtp.next()
			o.answer(words...)
			if words = words[len(o.Index):]; len(words) == 0 {
				break
			}
		}
	}
	told := func() (string, string) {
		var reply proto.StandingReply
		if err := st.tool.Call(t.Context(), &proto.Standing{}, &reply); err != nil {
			t.Fatal(err)
		}
		book, err := standing.Decode(reply.Book)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(book.Rows(time.Now())), reply.Problem
	}
	expect := func(want, problem string) {
		t.Helper()
		testwait.For(t, func() string {
			if rows, said := told(); rows != want || !strings.HasPrefix(said, problem) || problem == "" && said != "" {
				return fmt.Sprintf("%s, %q, want %s", rows, said, want)
			}
			return ""
		})
	}
	expect("[{{big } [3 1 1 0 1]} {{other mta1} [0 0 0 1 0]}]", "")
	stop()
	expect("[{{big } [3 1 1 0 0]}]", "what came back is not known: ")
}

// What was counted outlives the process, and a file that is damaged is no reason not to start.
func TestStandingKept(t *testing.T) {
	t.Parallel()
	state, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	log := new(lockedLog)
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	begin := func() *Server {
		s := &Server{opt: Options{State: state, Log: maillog.New("qmgr", maillog.NewWriter(log, maillog.Classic))}, now: now}
		s.restoreStanding()
		return s
	}
	rows := func(s *Server) string { return fmt.Sprint(s.standings.book.Rows(now)) }
	s := begin()
	reply := &proto.DeliverReply{Outcomes: []mail.Outcome{{Action: dsn.Delivered}, {Action: dsn.Relayed}, {Action: dsn.Deferred}, {Action: dsn.Failed}, {Action: dsn.Failed, DiagType: "smtp"}, {Action: dsn.Deliverable}}}
	s.countStanding(&delivery{provider: "big", source: "mta1"}, reply)
	s.countStanding(&delivery{}, reply)
	const want = "[{{big mta1} [2 1 1 0 0]}]"
	if got := rows(s); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.leaveStanding()
	if got := rows(begin()); got != want {
		t.Errorf("after a restart: %s, want %s", got, want)
	}
	if err := state.Replace(standingName, []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	if s := begin(); rows(s) != "[]" {
		t.Errorf("of a damaged file: %s", rows(s))
	}
	testwait.For(t, func() string {
		if text := log.String(); !strings.Contains(text, "counted anew: standing: ") {
			return text
		}
		return ""
	})
}
