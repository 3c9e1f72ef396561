package suppress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/returnpath"
	"posthaste/internal/statedir"
	"posthaste/internal/suppress/suppressclient"
)

// A world is the service, and a client of it.
type world struct {
	*suppressclient.Client
	t    *testing.T
	s    *server
	log  *strings.Builder
	stop func()

	mu  sync.Mutex
	now time.Time
}

func (w *world) later(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func start(t *testing.T, dir, main string) *world {
	cfg, err := config.LoadString("compatibility_level = 3.6\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, log: new(strings.Builder), now: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
	log := maillog.New("suppress", maillog.NewWriter(w.log, maillog.Classic))
	paths := &returnpath.Coder{Domain: "bounces.example.org", Secrets: []string{"a secret of sixteen"}, MaxDays: 14}
	if w.s, err = newServer(cfg, paths, state, log); err != nil {
		t.Fatal(err)
	}
	w.s.now = func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.now
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = (&ipc.Server{Handler: w.s.handle}).Serve(ctx, l, time.Second) })
	w.Client = suppressclient.New(ipc.Unix(path))
	w.stop = sync.OnceFunc(func() {
		w.Client.Close()
		cancel()
		wg.Wait()
		w.s.wg.Wait()
		if err := w.s.close(); err != nil {
			t.Error(err)
		}
		log.Close()
		state.Close()
	})
	t.Cleanup(w.stop)
	return w
}

func (w *world) suppressed(list, address string) string {
	w.t.Helper()
	a, err := w.Ask(w.t.Context(), &proto.SuppressAsk{List: list, Address: address})
	if err != nil {
		w.t.Fatal(err)
	}
	if !a.Suppressed {
		return "-"
	}
	return a.Entry.Reason
}

func (w *world) tell(what, list, address, class, token string) string {
	w.t.Helper()
	a, err := w.Tell(w.t.Context(), &proto.SuppressTell{What: what, List: list, Address: address, Class: class, Origin: "4jWn4F1YhnzSshsm4", Detail: "550 no\x1b", Token: token})
	if err != nil {
		return "error"
	}
	if a.Again {
		return "again"
	}
	return a.Added
}

func (w *world) change(what string, list ...proto.Suppression) uint64 {
	w.t.Helper()
	n, err := w.Change(w.t.Context(), &proto.SuppressChange{What: what, Import: "i", Entries: list})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) all() (list []string) {
	w.t.Helper()
	q := &proto.SuppressPage{All: true}
	for {
		p, err := w.Page(w.t.Context(), q)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range p.Entries {
			list = append(list, e.List+" "+e.Address+" "+e.Reason)
		}
		if q.After = p.Next; p.Next == "" {
			return list
		}
	}
}

// Classes that say something of the recipient suppress, and no other.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ what, class, want string }{
		{proto.ToldBounce, "InvalidRecipient", "bounce"},
		{proto.ToldBounce, "invalidrecipient", "bounce"},
		{proto.ToldBounce, "InactiveMailbox", "bounce"},
		{proto.ToldBounce, "SpamBlock", "-"},
		{proto.ToldBounce, "PolicyRelated", "-"},
		{proto.ToldBounce, "Uncategorized", "-"},
		{proto.ToldBounce, "", "-"},
		{proto.ToldBounce, "QuotaIssues", "-"},
		{proto.ToldExpired, "InvalidRecipient", "-"},
		{proto.ToldForwarded, "InvalidRecipient", "-"},
		{proto.ToldComplaint, "", "complaint"},
		{proto.ToldComplaint, "SpamBlock", "complaint"},
	} {
		w := start(t, t.TempDir(), "")
		w.tell(tt.what, "news", "Joe@Example.net", tt.class, "")
		if got := w.suppressed("news", "joe@example.NET"); got != tt.want {
			t.Errorf("%s %s: %s, expected %s", tt.what, tt.class, got, tt.want)
		}
		// Nobody else, and no other list.
		if w.suppressed("news", "jane@example.net") != "-" || w.suppressed("shop", "joe@example.net") != "-" {
			t.Errorf("%s %s: others are suppressed", tt.what, tt.class)
		}
		w.stop()
		line := "4jWn4F1YhnzSshsm4: to=<joe@example.net>, list=news, suppressed=" + tt.want + " (550 no?)"
		if has := strings.Contains(w.log.String(), line); has != (tt.want != "-") {
			t.Errorf("%s %s: log %q", tt.what, tt.class, w.log)
		}
	}
}

// Failures that pass count once a day, for a month; then they are enough.
func TestSoft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir, "suppress_bounce_lifetime = 10d\n")
	step := func(w *world, after time.Duration, want string) {
		t.Helper()
		w.later(after)
		if got := w.tell(proto.ToldBounce, "news", "joe@example.net", "QuotaIssues", ""); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
	const day = 24 * time.Hour
	step(w, 0, "")
	step(w, time.Hour, "") // the same day
	step(w, time.Hour, "")
	step(w, 20*day, "")
	now := w.now
	w.stop()
	w = start(t, dir, "suppress_bounce_lifetime = 10d\n")
	w.now = now
	step(w, 10*day, "") // the first one is too old by now
	step(w, 9*day, "bounces")
	step(w, time.Hour, "") // it is there
	if got := w.suppressed("news", "joe@example.net"); got != "bounces" {
		t.Errorf("%s", got)
	}
	w.later(10 * day)
	if got := w.suppressed("news", "joe@example.net"); got != "-" {
		t.Errorf("%s after its time", got)
	}
	if err := w.s.tidy(w.now.Add(40 * day)); err != nil {
		t.Fatal(err)
	}
	w.later(40 * day)
	step(w, 0, "")
	// Removed by hand, the count begins anew.
	step(w, day, "")
	w.change(proto.SuppressRemove, proto.Suppression{List: "news", Address: "joe@example.net"})
	step(w, day, "")
}

// A return path brings the message back, with and without its record, and counts once. One that is forged, or of
// somebody else, brings nothing.
func TestReturnPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir, "")
	ask := func(rcpt string) string {
		a, err := w.Ask(t.Context(), &proto.SuppressAsk{List: "news", Address: rcpt, QueueID: "4jWn4F1YhnzSshsm4", Sender: "list@example.org", MessageID: "<1@example.org>", EnvID: "e",
			Tenant: "shop", Campaign: "spring", Provider: "bigmail", Source: "mta1"})
		if err != nil || a.Path == "" {
			t.Fatalf("%+v, %v", a, err)
		}
		return a.Path
	}
	joe, jane := ask("Joe@example.net"), ask("jane@example.net")
	back := func(path string, rcpts ...string) proto.ReturnPathReply {
		t.Helper()
		r, err := w.ReturnPath(t.Context(), &proto.ReturnPath{Address: path, Recipients: rcpts})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := proto.ReturnPathReply{QueueID: "4jWn4F1YhnzSshsm4", Recipient: "Joe@example.net", Recorded: true, List: "news", Sender: "list@example.org", MessageID: "<1@example.org>", EnvID: "e",
		Tenant: "shop", Campaign: "spring", Provider: "bigmail", Source: "mta1"}
	if got := back(strings.ToUpper(joe)); got != want {
		t.Errorf("%+v", got)
	}
	if got := back(jane).Recipient; got != "jane@example.net" {
		t.Errorf("%s", got)
	}
	forged := strings.Replace(joe, "b+", "b+a", 1)
	if got := back(forged); got.Problem == "" || got.QueueID != "" {
		t.Errorf("%+v", got)
	}
	for _, tt := range []struct{ rcpt, token, want string }{
		{"joe@example.net", forged, "error"},
		{"joe@example.net", jane, "error"},
		{"joe@example.net", joe, "bounce"},
		{"joe@example.net", strings.ToUpper(joe), "again"},
		{"jane@example.net", jane, "bounce"},
	} {
		if got := w.tell(proto.ToldBounce, "news", tt.rcpt, "BadDomain", tt.token); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
	if got := w.tell(proto.ToldComplaint, "news", "joe@example.net", "", joe); got != "complaint" {
		t.Errorf("a complaint after a bounce: %s", got)
	}
	// The record is gone: the hash says which of the addresses it was.
	if err := w.s.records.forget(returnpath.Day(w.now) + 1); err != nil {
		t.Fatal(err)
	}
	if got := back(joe, "jane@example.net", "JOE@example.net"); got.Recorded || got.Recipient != "JOE@example.net" || got.QueueID != "4jWn4F1YhnzSshsm4" {
		t.Errorf("%+v", got)
	}
	// As after a power cut: another delivery is recorded in its place.
	w.s.records.close()
	if ask("jim@example.net"); !back(ask("jim@example.net")).Recorded {
		t.Error("a new record is not found")
	}
	if got := back(joe); got.Recorded || got.Recipient != "" || got.List != "" {
		t.Errorf("the record of another one: %+v", got)
	}
	w.later(15 * 24 * time.Hour)
	if got := back(joe); got.Problem == "" {
		t.Errorf("%+v", got)
	}
	if err := w.s.tidy(w.now); err != nil {
		t.Fatal(err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "sent.*")); len(names) > 0 {
		t.Errorf("%v", names)
	}
}

// A list of everything that is wrong finds nothing, and harms nobody.
// A return path that another node has made, which has the same secret, says nothing of the delivery that is recorded in the same place here.
func TestReturnPathOfOtherNode(t *testing.T) {
	t.Parallel()
	var paths [2]string
	var nodes [2]*world
	for i, id := range []string{"4jWn4F1YhnzSshsm4", "4jWn4F1YhnzSshsm5"} {
		nodes[i] = start(t, t.TempDir(), "")
		a, err := nodes[i].Ask(t.Context(), &proto.SuppressAsk{List: "news", Address: "joe@example.net", QueueID: id, Sender: "list@example.org"})
		if err != nil || a.Path == "" {
			t.Fatalf("%+v, %v", a, err)
		}
		paths[i] = a.Path
	}
	if got := nodes[0].tell(proto.ToldBounce, "news", "joe@example.net", "BadDomain", paths[0]); got != "bounce" {
		t.Fatal(got)
	}
	got, err := nodes[0].ReturnPath(t.Context(), &proto.ReturnPath{Address: paths[1], Recipients: []string{"joe@example.net"}})
	if want := (proto.ReturnPathReply{QueueID: "4jWn4F1YhnzSshsm5", Recipient: "joe@example.net"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := nodes[1].ReturnPath(t.Context(), &proto.ReturnPath{Address: paths[1]}); err != nil || !got.Recorded || got.Bounced {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestHostile(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	for _, e := range []proto.Suppression{{List: "a b", Address: "joe@x"}, {List: "a", Address: "joe"}, {Address: "jo\x00e@x"}, {Address: "jo\te@x"}, {Address: "joe@x y"}, {Address: strings.Repeat("a", 600) + "@x"}, {List: strings.Repeat("a", 65), Address: "a@x"}} {
		if _, err := w.Change(t.Context(), &proto.SuppressChange{What: proto.SuppressAdd, Entries: []proto.Suppression{e}}); err == nil {
			t.Errorf("%.80q %.80q was added", e.List, e.Address)
		}
	}
	if got := w.all(); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if _, err := w.Change(t.Context(), &proto.SuppressChange{What: proto.SuppressStage}); err == nil {
		t.Error("staged without a begin")
	}
	if _, err := w.Change(t.Context(), &proto.SuppressChange{What: "x"}); err == nil {
		t.Error("an unknown change")
	}
}

// An import counts as a whole, or not at all, also when the process ends in between; and entries that come meanwhile
// are not lost.
func TestImport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir, "")
	entry := func(i int, reason string) proto.Suppression {
		return proto.Suppression{List: "news", Address: fmt.Sprintf("u%05d@example.net", i), Reason: reason}
	}
	w.change(proto.SuppressAdd, entry(7, "old"))
	stage := func(from, n int) {
		var list []proto.Suppression
		for i := range n {
			list = append(list, entry(from+i, "import"))
		}
		w.change(proto.SuppressStage, list...)
	}
	w.change(proto.SuppressBegin)
	stage(0, 2000)
	if got := w.suppressed("news", "u00001@example.net") + w.suppressed("news", "u00007@example.net"); got != "-old" {
		t.Errorf("before its end: %s", got)
	}
	w.stop()
	w = start(t, dir, "")
	if _, err := w.Change(t.Context(), &proto.SuppressChange{What: proto.SuppressEnd, Import: "i"}); err == nil {
		t.Error("an import ended that another process had begun")
	}
	if got := w.all(); !slices.Equal(got, []string{"news u00007@example.net old"}) {
		t.Errorf("%q", got)
	}
	w.change(proto.SuppressBegin)
	for i := range 3 {
		stage(i*2000, 1800)
	}
	w.change(proto.SuppressEnd)
	if got := w.suppressed("news", "u00001@example.net") + w.suppressed("news", "u00007@example.net"); got != "importimport" {
		t.Errorf("after its end: %s", got)
	}
	// One step, and then the process ends.
	if more, err := w.s.store.merge(); !more || err != nil {
		t.Fatal(more, err)
	}
	w.change(proto.SuppressAdd, entry(5000, "hand"), entry(1, "hand"))
	w.change(proto.SuppressRemove, entry(5001, ""), entry(2, ""))
	w.stop()
	w = start(t, dir, "")
	for i, want := range map[int]string{0: "import", 1: "hand", 2: "-", 1900: "-", 5000: "hand", 5001: "-", 5002: "import"} {
		if got := w.suppressed("news", entry(i, "").Address); got != want {
			t.Errorf("%d: %s, expected %s", i, got, want)
		}
	}
	if got := len(w.all()); got != 3*1800-2 {
		t.Errorf("%d entries", got)
	}
}

// A bounce of an address with the Kelvin sign suppresses nobody else, though Unicode folds the sign to a k.
func TestOtherLetters(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	if _, err := w.Tell(t.Context(), &proto.SuppressTell{What: proto.ToldBounce, List: "news", Address: "Jac\u212a@example.net", Class: "InvalidRecipient"}); err != nil {
		t.Fatal(err)
	}
	if got := w.suppressed("news", "jack@example.net") + w.suppressed("news", "jac\u212a@example.NET"); got != "-bounce" {
		t.Error(got)
	}
}

// Of two imports at a time one is taken, as a whole, and the other is told.
func TestTwoImports(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	step := func(what, name, address string) error {
		q := &proto.SuppressChange{What: what, Import: name}
		if address != "" {
			q.Entries = []proto.Suppression{{List: "news", Address: address, Reason: name}}
		}
		_, err := w.Change(t.Context(), q)
		return err
	}
	for _, s := range []struct {
		what, name, address string
		fails               bool
	}{
		{proto.SuppressBegin, "", "", true},
		{proto.SuppressBegin, "one", "", false},
		{proto.SuppressStage, "one", "a@x.test", false},
		{proto.SuppressBegin, "two", "", false},
		{proto.SuppressStage, "one", "b@x.test", true},
		{proto.SuppressStage, "two", "c@x.test", false},
		{proto.SuppressEnd, "one", "", true},
		{proto.SuppressEnd, "two", "", false},
		{proto.SuppressEnd, "two", "", false}, // the answer may have been lost
		{proto.SuppressEnd, "one", "", true},
	} {
		if err := step(s.what, s.name, s.address); (err != nil) != s.fails {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if got := w.all(); !slices.Equal(got, []string{"news c@x.test two"}) {
		t.Errorf("%q", got)
	}
}

// What an import has of an address takes the place of what is there, unless that counts more.
func TestImportOrder(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		name          string
		old, imported proto.Suppression
		stays         bool
	}{
		{"a newer complaint", proto.Suppression{Reason: "complaint", Time: 900}, proto.Suppression{Reason: "bounce", Time: 800, Until: 2000}, true},
		{"an older complaint", proto.Suppression{Reason: "complaint", Time: 700}, proto.Suppression{Reason: "bounce", Time: 800}, true},
		{"a complaint is imported", proto.Suppression{Reason: "bounce", Time: 900}, proto.Suppression{Reason: "complaint", Time: 800}, false},
		{"a complaint counts more than to unsubscribe", proto.Suppression{Reason: "complaint", Time: 700}, proto.Suppression{Reason: "unsubscribe", Time: 800}, true},
		{"somebody has unsubscribed", proto.Suppression{Reason: "unsubscribe", Time: 700, Until: 2000}, proto.Suppression{Reason: "bounce", Time: 800}, true},
		{"for ever", proto.Suppression{Reason: "moved", Time: 700}, proto.Suppression{Reason: "bounce", Time: 800, Until: 2000}, true},
		{"it is over", proto.Suppression{Reason: "complaint", Time: 700, Until: 999}, proto.Suppression{Reason: "bounce", Time: 600, Until: 2000}, false},
		{"what is imported is over", proto.Suppression{Reason: "bounce", Time: 700, Until: 2000}, proto.Suppression{Reason: "complaint", Time: 900, Until: 999}, true},
		{"newer", proto.Suppression{Reason: "bounce", Time: 900}, proto.Suppression{Reason: "bounce", Time: 800}, true},
		{"the same time", proto.Suppression{Reason: "bounce", Time: 800}, proto.Suppression{Reason: "moved", Time: 800}, false},
	} {
		if got := outranks(&tt.old, &tt.imported, now); got != tt.stays {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	// A complaint that comes while the import is being staged, and one that comes when it is complete and not yet moved.
	w := start(t, t.TempDir(), "")
	old := func(address string) proto.Suppression {
		return proto.Suppression{List: "news", Address: address, Reason: "bounce", Time: 1, Until: w.now.Unix() + 100}
	}
	w.change(proto.SuppressBegin)
	w.change(proto.SuppressStage, old("a@x.test"), old("b@x.test"), old("c@x.test"))
	w.tell(proto.ToldComplaint, "news", "a@x.test", "", "")
	w.change(proto.SuppressEnd)
	w.tell(proto.ToldComplaint, "news", "b@x.test", "", "")
	for range 2 {
		got := w.suppressed("news", "a@x.test") + " " + w.suppressed("news", "b@x.test") + " " + w.suppressed("news", "c@x.test")
		if got != "complaint complaint bounce" {
			t.Error(got)
		}
		if _, err := w.s.store.merge(); err != nil {
			t.Fatal(err)
		}
	}
}

// An address is the same in both forms of its domain, in the list and in a return path.
func TestInternational(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	const u, a = "Joe@B\u00fccher.example", "joe@xn--bcher-kva.example"
	ask, err := w.Ask(t.Context(), &proto.SuppressAsk{List: "news", Address: u, QueueID: "4jWn4F1YhnzSshsm4", Sender: "list@example.org"})
	if err != nil || ask.Path == "" {
		t.Fatalf("%+v, %v", ask, err)
	}
	if got := w.tell(proto.ToldBounce, "news", a, "BadDomain", ask.Path); got != "bounce" {
		t.Errorf("a bounce of the other form: %s", got)
	}
	for _, address := range []string{u, a, strings.ToUpper(a), "joe@b\u00fccher.example"} {
		if got := w.suppressed("news", address); got != "bounce" {
			t.Errorf("%s: %s", address, got)
		}
	}
	if w.change(proto.SuppressRemove, proto.Suppression{List: "news", Address: u}) != 1 {
		t.Error("the other form is not removed")
	}
	// Without the record the hash knows either form.
	if err := w.s.records.forget(returnpath.Day(w.now) + 1); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{u, a} {
		if r, err := w.ReturnPath(t.Context(), &proto.ReturnPath{Address: ask.Path, Recipients: []string{address}}); err != nil || r.Recipient != address {
			t.Errorf("%s: %+v, %v", address, r, err)
		}
	}
}

// An address has one form, whose local part may have spaces: a bounce of it comes back to the return path that it was
// asked for with, and its entry is found.
func TestQuoted(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	const address = "John Doe@x.example"
	ask, err := w.Ask(t.Context(), &proto.SuppressAsk{List: "news", Address: address, QueueID: "4jWn4F1YhnzSshsm4", Sender: "list@example.org"})
	if err != nil || ask.Path == "" {
		t.Fatalf("%+v, %v", ask, err)
	}
	if got := w.tell(proto.ToldBounce, "news", address, "BadDomain", ask.Path); got != "bounce" {
		t.Errorf("its bounce: %s", got)
	}
	if got := w.suppressed("news", "john doe@X.example") + w.suppressed("news", "doe@x.example"); got != "bounce-" {
		t.Error(got)
	}
}

// A list that a disk has emptied is damaged, and no new one; and so it stays over restarts.
func TestEmptied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir, "")
	if got := w.suppressed("news", "ann@example.net"); got != "-" {
		t.Fatal(got)
	}
	w.stop()
	if _, err := os.Lstat(filepath.Join(dir, freshName)); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
	if err := os.Truncate(filepath.Join(dir, storeName), 0); err != nil {
		t.Fatal(err)
	}
	// What a crash has left of making a new one does not matter.
	if err := os.WriteFile(filepath.Join(dir, freshName), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w = start(t, dir, "")
		if _, err := w.Ask(t.Context(), &proto.SuppressAsk{List: "news", Address: "ann@example.net"}); err == nil || !strings.Contains(err.Error(), "is lost") {
			t.Errorf("%v", err)
		}
		for _, q := range []proto.SuppressPage{{Address: "ann@example.net"}, {All: true}, {List: "news"}, {Tenant: "shop"}} {
			if _, err := w.Page(t.Context(), &q); err == nil || !strings.Contains(err.Error(), "is lost") {
				t.Errorf("%+v: a list that is lost says who is on it: %v", q, err)
			}
		}
		w.stop()
	}
}

// A damaged list is set aside. Mail waits until an operator says what the list is; that it is lost no restart forgets.
func TestDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir, "")
	w.change(proto.SuppressAdd, proto.Suppression{List: "news", Address: "ann@example.net", Reason: "complaint"})
	w.stop()
	path := filepath.Join(dir, storeName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range text { // all pages, and so the descriptions as well
		text[i] ^= 0x55
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ask := &proto.SuppressAsk{List: "news", Address: "ann@example.net"}
	for range 2 {
		w = start(t, dir, "")
		if a, err := w.Ask(t.Context(), ask); err == nil || !strings.Contains(err.Error(), "is lost") {
			t.Fatalf("%+v, %v", a, err)
		}
		if told, err := w.Tell(t.Context(), &proto.SuppressTell{What: proto.ToldComplaint, List: "news", Address: "new@example.net"}); err != nil {
			t.Fatalf("%+v, %v", told, err)
		}
		w.stop()
	}
	if aside, err := os.ReadFile(path + asideSuffix); err != nil || !bytes.Equal(aside, text) {
		t.Errorf("set aside: %d octets, %v", len(aside), err)
	}
	w = start(t, dir, "")
	w.change(proto.SuppressBegin)
	w.change(proto.SuppressStage, proto.Suppression{List: "news", Address: "ann@example.net", Reason: "import"})
	if _, err := w.Ask(t.Context(), ask); err == nil {
		t.Error("an import counts that has not ended")
	}
	w.change(proto.SuppressEnd)
	for range 2 {
		if got := w.suppressed("news", "ann@example.net") + w.suppressed("news", "new@example.net") + w.suppressed("news", "joe@example.net"); got != "importcomplaint-" {
			t.Errorf("after the import: %s", got)
		}
		w.stop()
		w = start(t, dir, "")
	}
}

// An import for one tenant or one list counts, and says nothing of the others: a list that is lost stays so, whoever asks
// again, and mail of others does not go to those who have complained.
func TestDamagedPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, dir, "").stop()
	if err := os.Truncate(filepath.Join(dir, storeName), 0); err != nil {
		t.Fatal(err)
	}
	w := start(t, dir, "")
	bring := func(part bool, list ...proto.Suppression) (err error) {
		for _, q := range []proto.SuppressChange{{What: proto.SuppressBegin}, {What: proto.SuppressStage, Entries: list}, {What: proto.SuppressEnd, Part: part},
			{What: proto.SuppressEnd, Part: part}} { // the answer may have been lost
			q.Import = "one"
			if _, err = w.Change(t.Context(), &q); err != nil && q.What != proto.SuppressEnd {
				t.Fatal(err)
			}
		}
		return err
	}
	ann := &proto.SuppressAsk{List: "shop/", Address: "ann@example.net"}
	for range 2 {
		if err := bring(true, proto.Suppression{List: "shop/", Address: "ann@example.net", Reason: "import"}); !errors.Is(err, suppressclient.ErrLost) {
			t.Fatal(err)
		}
		if a, err := w.Ask(t.Context(), ann); err == nil || !strings.Contains(err.Error(), "is lost") {
			t.Errorf("%+v, %v", a, err)
		}
		w.stop()
		w = start(t, dir, "")
	}
	if err := bring(false); err != nil {
		t.Fatal(err)
	}
	if got := w.suppressed("shop/", "ann@example.net") + w.suppressed("bank/", "ann@example.net"); got != "import-" {
		t.Error(got)
	}
	// It is not lost any more, and a part of it is brought as ever.
	if err := bring(true, proto.Suppression{List: "bank/", Address: "ann@example.net", Reason: "moved"}); err != nil || w.suppressed("bank/", "ann@example.net") != "moved" {
		t.Error(err)
	}
}

// merged is what is left of two entries of an address.
func merged(old, e proto.Suppression, now time.Time) proto.Suppression {
	if outranks(&old, &e, now) {
		old.Until = longer(&old, &e, now)
		return old
	}
	e.Until = longer(&e, &old, now)
	return e
}

// The store is a map, whatever happens to it and however often it is closed and opened.
func TestStoreModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		state, err := statedir.Open(filepath.Join(dir, fmt.Sprint(n)))
		if err != nil {
			rt.Fatal(err)
		}
		defer state.Close()
		s, err := openStore(state, rt.Logf)
		if err != nil {
			rt.Fatal(err)
		}
		ten := func() time.Time { return time.Unix(10, 0) }
		s.db.NoSync, s.now = true, ten
		model := map[string]proto.Suppression{}
		var staged map[string]proto.Suppression
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			e := proto.Suppression{List: rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "list"), Address: rapid.SampledFrom([]string{"x@y", "z@y"}).Draw(rt, "address"),
				Reason: rapid.SampledFrom([]string{"r", reasonComplaint}).Draw(rt, "reason"), Time: rapid.Int64Range(1, 3).Draw(rt, "time"), Until: rapid.SampledFrom([]int64{0, 5, 20}).Draw(rt, "until")}
			k := string(key(e.List, e.Address))
			var err error
			switch rapid.SampledFrom([]string{"add", "remove", "begin", "stage", "end", "merge", "reopen"}).Draw(rt, "what") {
			case "add":
				err, model[k] = s.add([]proto.Suppression{e}), e
			case "remove":
				// What is staged, and not complete, is removed as well: it was written before.
				_, err = s.remove([]proto.Suppression{e})
				delete(model, k)
				delete(staged, k)
			case "begin":
				err, staged = s.begin("i"), map[string]proto.Suppression{}
			case "stage":
				// Another import has no part in it.
				if s.stage("other", []proto.Suppression{e}) == nil || s.end("other", false) == nil {
					rt.Fatal("two imports are one")
				}
				if err = s.stage("i", []proto.Suppression{e}); staged == nil {
					err = nil
				} else {
					if old, ok := staged[k]; ok {
						e = merged(old, e, ten())
					}
					staged[k] = e
				}
			case "end":
				if err = s.end("i", false); staged == nil {
					err = nil
				}
				for k, v := range staged {
					if old, ok := model[k]; ok {
						v = merged(old, v, ten())
					}
					model[k] = v
				}
				staged = nil
			case "merge":
				_, err = s.merge()
			case "reopen":
				err = s.close()
				if s, _ = openStore(state, rt.Logf); s != nil {
					s.db.NoSync, s.now = true, ten
				}
				staged = nil
			}
			if err != nil {
				rt.Fatal(err)
			}
			for _, list := range []string{"", "a", "b"} {
				want, ok := model[string(key(list, "x@y"))]
				if ok = ok && holds(&want, ten()); !ok {
					want, ok = model[string(key("", "x@y"))]
					ok = ok && holds(&want, ten())
				}
				if !ok {
					want = proto.Suppression{}
				}
				got, found, err := s.find(list, "x@y", ten())
				if err != nil || found != ok || got != want {
					rt.Fatalf("list %q: %+v, %v, %v, expected %+v", list, got, found, err, want)
				}
			}
			var all []proto.Suppression
			for _, list := range []string{"", "a", "b"} {
				if e, ok := model[string(key(list, "x@y"))]; ok {
					all = append(all, e)
				}
			}
			if got, err := s.everywhere("", "x@y"); err != nil || !slices.Equal(got, all) {
				rt.Fatalf("everywhere: %+v, %v, expected %+v", got, err, all)
			}
		}
		if err := s.close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// Whatever a record's file has become, reading it finds the record or nothing.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x00"), int64(0))
	f.Add([]byte("\xff\xff\x00\x00\x00\x00"), int64(1<<39))
	f.Fuzz(func(t *testing.T, file []byte, position int64) {
		dir, err := statedir.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if err := dir.WriteFile(recordName(1), file, fs.FileMode(0o600)); err != nil {
			t.Fatal(err)
		}
		r := records{dir: dir}
		defer r.close()
		_, _ = r.read(1, max(position, 0))
		at, err := r.append(1, &sent{Recipient: "joe@example.net"})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := r.read(1, at); err != nil || s.Recipient != "joe@example.net" {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestComplaintAndImport: a complaint with an end keeps its reason beside an import for ever, and does not end before it;
// one about an entry for ever is recorded; and what comes after a complaint leaves it one.
func TestComplaintAndImport(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	end := w.now.Unix() + 50
	entry := func(address, reason string, until int64) proto.Suppression {
		return proto.Suppression{List: "news", Address: address, Reason: reason, Time: w.now.Unix(), Until: until}
	}
	w.change(proto.SuppressAdd, entry("a@x.test", "complaint", end), entry("b@x.test", "moved", 0), entry("c@x.test", "complaint", end), entry("d@x.test", "complaint", end))
	w.change(proto.SuppressBegin)
	w.change(proto.SuppressStage, entry("a@x.test", "import", 0), entry("d@x.test", "import", end+50))
	w.change(proto.SuppressEnd)
	if got := w.tell(proto.ToldComplaint, "news", "b@x.test", "", ""); got != "complaint" {
		t.Errorf("a complaint about an entry for ever: %q", got)
	}
	w.tell(proto.ToldBounce, "news", "c@x.test", "BadDomain", "")
	want := "complaint complaint complaint complaint"
	for range 2 {
		if got := w.suppressed("news", "a@x.test") + " " + w.suppressed("news", "b@x.test") + " " + w.suppressed("news", "c@x.test") + " " + w.suppressed("news", "d@x.test"); got != want {
			t.Error(got)
		}
		if _, err := w.s.store.merge(); err != nil {
			t.Fatal(err)
		}
	}
	w.now = time.Unix(end+10, 0)
	if got := w.suppressed("news", "a@x.test") + " " + w.suppressed("news", "b@x.test") + " " + w.suppressed("news", "d@x.test"); got != "complaint complaint complaint" {
		t.Errorf("when the complaint is over: %s", got)
	}
}

// TestImportEndsTwice: who has not heard that an import has ended asks again, and hears that it has.
func TestImportEndsTwice(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	end := func(name string) error {
		_, err := w.s.change(&proto.SuppressChange{What: proto.SuppressEnd, Import: name})
		return err
	}
	if _, err := w.s.change(&proto.SuppressChange{What: proto.SuppressBegin, Import: "one"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := end("one"); err != nil {
			t.Error(err)
		}
	}
	if err := end("two"); !errors.Is(err, errImport) {
		t.Errorf("an import that has not begun has ended: %v", err)
	}
}
