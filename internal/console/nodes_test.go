package console

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/internal/spooltool/faketest"
)

// IDs of messages of other nodes, whose times are good.
const (
	onB = "4jWmK60rlcz1SCpX"
	onD = "4jWmK60rlcz1SCpY"
	onA = "4jWmK60rlcz1SCpZ"
)

// A neighbourhood is other nodes of a world: b and c have parts and are alive, c does not answer; d is down.
type neighbourhood struct {
	t      *testing.T
	asked  []string // "b hold", of other nodes
	unread bool     // part 2, which is a's, has not been read yet, and has onA
	held   bool     // onA is on hold
}

// share has the world's queue shared with others.
func (w *world) share(t *testing.T) *neighbourhood {
	n := &neighbourhood{t: t}
	w.set(func() { w.nodes = n.answer })
	w.console.mta.node = "a"
	return n
}

func (n *neighbourhood) answer(r *ipc.Request) bool {
	switch r.Kind {
	case proto.KindNodes:
		r.Reply(&proto.NodesReply{Parts: []proto.NodePart{{ID: 2, Node: "a", Own: true, Unread: n.unread}, {ID: 1, Node: "b"}, {ID: 5, Node: "b"}, {ID: 3, Node: "c"}, {ID: 4, Node: "d", Down: true}},
			Nodes: []proto.NodeInfo{{Name: "a", Own: true}, {Name: "b"}, {Name: "c"}, {Name: "d", Down: true}}})
	case proto.KindList:
		q := faketest.Decode[proto.List](n.t, r)
		if q.Part == 0 {
			return false
		}
		it, ok := map[int]proto.Item{1: {ID: onB, Node: "b"}, 2: {ID: onA, Node: "a"}, 4: {ID: onD, Node: "d", Down: true}}[q.Part]
		switch {
		case q.Part == 3:
			r.Fail("part 3 of the queue cannot be read: it is damaged")
		case !ok || q.ID != "" && q.ID != it.ID:
			r.Reply(&proto.ListReply{})
		default:
			if it.Queue = "deferred"; n.held && it.ID == onA {
				it.Queue = "hold"
			}
			it.Sender, it.Recipients = "s@from.test", []proto.ItemRcpt{{Address: "x@to.test", Orig: "x@to.test"}}
			r.Reply(&proto.ListReply{Items: []proto.Item{it}})
		}
	case proto.KindForward:
		q := faketest.Decode[proto.Forward](n.t, r)
		if q.By != inLogs {
			n.t.Errorf("asked by %q", q.By)
		}
		// What is ordered of a node is ordered of its parts, whoever has them then.
		if want := map[string][]int{"b": {1, 5}, "c": {3}, "d": {4}}[q.Node]; q.Asked == proto.KindCommand && !slices.Equal(q.Parts, want) {
			n.t.Errorf("node %s is asked for its parts %v, want %v", q.Node, q.Parts, want)
		}
		if q.Node == "d" && q.Asked == proto.KindCommand {
			n.atB(&q)
			r.Reply(&proto.ForwardReply{Ordered: "it does not answer. This is ordered: x"})
			return true
		}
		if q.Node != "b" {
			r.Reply(&proto.ForwardReply{Failed: "it does not answer"})
			return true
		}
		r.Reply(&proto.ForwardReply{Payload: n.atB(&q).Append(nil)})
	case proto.KindCommand:
		q := faketest.Decode[proto.Command](n.t, r)
		if q.ID != onA {
			return false
		}
		n.asked = append(n.asked, fmt.Sprint("own ", q.Verb))
		r.Reply(&proto.CommandReply{Unread: proto.Unread{Ordered: "part 2 of the queue has not been read yet. This is ordered: x"}})
	case proto.KindSelect:
		q := faketest.Decode[proto.Select](n.t, r)
		if !n.unread || q.Verb == 0 {
			return false
		}
		reply := &proto.SelectReply{IDs: []mail.QueueID{queueID}, Unread: proto.Unread{Ordered: "part 2 of the queue has not been read yet. This is ordered: y"}}
		if len(q.IDs) == 0 && q.Cursor == 0 {
			reply.Next = 7
		}
		n.asked = append(n.asked, fmt.Sprint(q.Verb, " ", q.Cursor))
		r.Reply(reply)
	default:
		return false
	}
	return true
}

// atB is what node b answers.
func (n *neighbourhood) atB(q *proto.Forward) ipc.Message {
	switch q.Asked {
	case proto.KindShape:
		return &proto.ShapeReply{Rows: []proto.ShapeRow{{Domain: "b.test", Queue: "deferred", Counts: []int{0, 100}}, {Domain: "b.test", Queue: "deferred", Senders: true, Counts: []int{0, 100}}},
			Totals: proto.Totals{Since: time.Now().Add(-time.Hour), In: 1000}}
	case proto.KindExplain:
		return &proto.ExplainReply{Lines: []string{"first", "b says so"}, Dests: []proto.DestInfo{{Transport: "smtp", Nexthop: "hub.test", State: "ready"}}}
	case proto.KindOverride:
		n.asked = append(n.asked, "override")
		return &proto.OverrideReply{Found: true, Entries: []proto.OverrideEntry{{Of: "suspension", Target: "slow.test"}}, Waiting: []int{41}}
	case proto.KindSelect:
		var s proto.Select
		if s.Decode(q.Payload) != nil {
			n.t.Error("no selection")
		}
		n.asked = append(n.asked, fmt.Sprint("select ", s.Verb))
		return &proto.SelectReply{IDs: []mail.QueueID{onB}, Items: []proto.Item{{ID: onB, Queue: "deferred"}}, Octets: 7}
	}
	var c proto.Command
	if c.Decode(q.Payload) != nil {
		n.t.Error("no command")
	}
	n.asked = append(n.asked, fmt.Sprint(c.ID, " ", c.Verb))
	return &proto.CommandReply{IDs: []mail.QueueID{c.ID}}
}

// A list goes on with what other nodes have, each message once, and names what it could not read.
func TestListOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.share(t)
	for _, c := range []struct {
		condition, value string
		ids, unread      string
	}{
		// Where mail goes only the nodes themselves know.
		{"nexthop", "hub.test", "a:" + queueID + " a:" + queueID + " b:" + onB, "node c: node c: it does not answer|node d: it is down, and where its mail goes is not known"},
		{"sender", "s@from.test", "a:" + queueID + " a:" + queueID + " b:" + onB + " d:" + onD, "node c: part 3 of the queue cannot be read: it is damaged"},
		{"domain", "no.test", "a:" + queueID + " a:" + queueID, "node c: part 3 of the queue cannot be read: it is damaged"},
	} {
		where := selection.New(time.Now())
		if err := where.Set(c.condition, c.value); err != nil {
			t.Fatal(err)
		}
		var ids, unread []string
		for cursor, pages := 0, 0; ; pages++ {
			list, err := w.console.mta.list(t.Context(), where, cursor)
			if err != nil || pages > 20 {
				t.Fatal(err, pages)
			}
			for _, it := range list.items {
				if it.ID == queueID {
					it.Node = "a"
				}
				ids = append(ids, it.Node+":"+string(it.ID))
			}
			unread = append(unread, list.unread...)
			if cursor = list.next; cursor == 0 {
				break
			}
		}
		if got := strings.Join(ids, " "); got != c.ids {
			t.Errorf("%s: %s, want %s", c.condition, got, c.ids)
		}
		if got := strings.Join(unread, "|"); got != c.unread {
			t.Errorf("%s: unread %s", c.condition, got)
		}
	}
}

// An act goes to the node that has the message, an order to all, and who could not be reached is named.
func TestActsOnNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.share(t)
	m := w.console.mta
	took := func() (list []string) {
		w.set(func() { list, n.asked = n.asked, nil })
		return list
	}
	if err := m.act(t.Context(), "hold", onB); err != nil {
		t.Error(err)
	}
	if got := took(); !slices.Equal(got, []string{onB + " " + fmt.Sprint(proto.VerbHold)}) {
		t.Errorf("%q", got)
	}
	if _, own := w.take(); len(own) != 0 {
		t.Errorf("this node was asked: %+v", own)
	}
	if err := m.act(t.Context(), "hold", onD); err == nil || err.Error() != "node d: it does not answer. This is ordered: x" || statusOf(err) != http.StatusAccepted {
		t.Error(err)
	}
	if got := took(); !slices.Equal(got, []string{onD + " " + fmt.Sprint(proto.VerbHold)}) {
		t.Errorf("%q", got)
	}
	if err := m.act(t.Context(), "hold", queueID); err != nil || len(took()) != 0 {
		t.Error(err)
	}
	if _, own := w.take(); len(own) != 1 {
		t.Errorf("this node was asked %+v", own)
	}
	err := m.suspend(t.Context(), "slow.test", "ann", "", time.Time{})
	if got := took(); !errors.Is(err, errNodes) || !strings.Contains(err.Error(), "node c: it does not answer; node d: it does not answer") || !slices.Equal(got, []string{"override"}) {
		t.Errorf("%v, %q", err, got)
	}
	where := selection.New(time.Now())
	if err := where.Set("domain", "to.test"); err != nil {
		t.Fatal(err)
	}
	count, err := m.count(t.Context(), where)
	if !errors.Is(err, errNodes) || !slices.Equal(count.Missing, []string{"d"}) || count.Messages != 3 || count.Octets != 7 {
		t.Errorf("%+v, %v", count, err)
	}
}

// The pages have the mail of all nodes: the first, the table, a list, a message and a destination. What is missing is named.
func TestPagesOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.share(t)
	w.count()
	b := w.login("ann")
	for path, want := range map[string][]string{
		"/":                     {"on a, b.", "not counted, as they are down or do not answer: c, d.", "node b: b says so", ">b.test</a>"},
		"/queue":                {"on a, b.", "c, d.", ">b.test</a>"},
		"/messages":             {"<th scope=\"col\">Node</th>", "<td>b</td>", "<td>d, which is down</td>", "part 3 of the queue cannot be read"},
		"/message/" + onB:       {"<dt>Node</dt><dd>b</dd>", "b says so"},
		"/message/" + onD:       {"<dd>d, which is down</dd>", "until another node has taken it over"},
		"/destination/hub.test": {"On node a:", "On node b:", "b says so", "node c: it does not answer", "d: it is down"},
	} {
		text := ""
		for next := path; next != ""; { // a list has several pages
			status, page, _ := b.do(http.MethodGet, next, nil)
			if status != http.StatusOK {
				t.Errorf("%s: %d\n%s", next, status, page)
			}
			text += page
			if next = ""; strings.Contains(page, `<p><a href="/messages?cursor=`) {
				next = strings.ReplaceAll(between(page, `<p><a href="`, `"`), "&amp;", "&")
			}
		}
		for _, s := range want {
			if !strings.Contains(text, s) {
				t.Errorf("%s: there is no %q in\n%s", path, s, text)
			}
		}
	}
}

func between(s, a, b string) string {
	_, s, _ = strings.Cut(s, a)
	s, _, _ = strings.Cut(s, b)
	return s
}

// What is done to mail that this node has taken over and not read yet is ordered, and said to be.
func TestActsOnUnread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.share(t)
	w.set(func() { n.unread = true })
	m := w.console.mta
	for word, want := range map[string]string{"hold": fmt.Sprint("own ", proto.VerbHold), "return": fmt.Sprint("own ", proto.VerbExpire, " own ", proto.VerbRelease)} {
		if word == "return" {
			w.set(func() { n.held = true })
		}
		err := m.act(t.Context(), word, onA)
		if err == nil || !strings.HasPrefix(err.Error(), "part 2 of the queue has not been read yet. This is ordered: x") || statusOf(err) != http.StatusAccepted {
			t.Errorf("%s: %v", word, err)
		}
		w.set(func() {
			if got := strings.Join(n.asked, " "); got != want {
				t.Errorf("%s: asked %q, want %q", word, got, want)
			}
			n.asked = nil
		})
	}
	// What of a page is ordered keeps nobody from the next one.
	done, err := actOn(t.Context(), ownManager{m}, proto.VerbExpire, selection.New(time.Now()))
	want := fmt.Sprint(proto.VerbExpire, " 0 ", proto.VerbRelease, " 0 ", proto.VerbExpire, " 7 ", proto.VerbRelease, " 0")
	w.set(func() {
		if got := strings.Join(n.asked, " "); got != want || done != 2 || err == nil || cli.Status(err) != cli.ExitTemp {
			t.Errorf("return all: asked %q, want %q; %d, %v", got, want, done, err)
		}
	})
	n2, _, err := m.flush(t.Context(), "hub.test")
	if n2 == 0 || err == nil || !strings.Contains(err.Error(), "This is ordered: y") {
		t.Errorf("%d, %v", n2, err)
	}
}
