package queueclient

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// message is a file in maildrop.
func message(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	h := &maildrop.Header{Time: time.Now(), Sender: "me@from.test", Recipients: []mail.Recipient{{Address: "you@to.test"}}}
	if err := maildrop.Write(&b, h, strings.NewReader("Subject: y\n\nz\n")); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// dropList is what a listing says of maildrop.
func dropList(t *testing.T, s *faketest.Site) (senders []string, err error) {
	t.Helper()
	q := open(t, s)
	defer q.Close()
	err = q.Dropped(func(it *proto.Item) bool {
		senders = append(senders, it.Sender)
		return true
	})
	return senders, err
}

const droppedName = "4jWmK60rlcz1SCpW"

// What is in maildrop is listed: whole messages that lie there, and nothing that a link leads to.
func TestDropped(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	at := func(name string) string { return filepath.Join(s.Queue, "maildrop", name) }
	if err := os.WriteFile(at(droppedName), []byte(message(t)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("4jWmK60rlcz1SCpX"), []byte(message(t)), 0o600); err != nil { // not finished
		t.Fatal(err)
	}
	if err := os.Symlink(at(droppedName), at("4jWmK60rlcz1SCpY")); err != nil {
		t.Fatal(err)
	}
	if list, err := dropList(t, s); err != nil || len(list) != 1 || list[0] != "me@from.test" {
		t.Errorf("%q %v", list, err)
	}
}

// Where the mail system's user has put a way to root's directory in place of maildrop, root lists nothing of
// what is there.
func TestPlantedMaildrop(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.PlantMaildrop(droppedName, message(t))
	if list, err := dropList(t, s); len(list) > 0 {
		t.Errorf("%q %v", list, err)
	}
}
