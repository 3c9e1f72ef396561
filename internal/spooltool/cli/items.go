package cli

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
)

// Items calls f for each message of a mail system that is down, as the queue
// manager would list it.
func (q *Queue) Items(warn func(string, ...any), f func(*proto.Item) bool) error {
	rd := spool.NewReader(nil, q.Spool())
	defer rd.Close()
	return q.View(warn, func(e queue.Entry) bool {
		it, err := ReadItem(rd, &e)
		if err != nil {
			warn("%v", err)
			return true
		}
		return f(it)
	})
}

// ReadItem reads what a listing says of a message in the spool.
func ReadItem(rd *spool.Reader, e *queue.Entry) (*proto.Item, error) {
	st, err := rd.Read(e.Ref, e.ID)
	if err != nil {
		return nil, err
	}
	st.Overlay(e.Done)
	env, err := st.Envelope()
	if err != nil {
		return nil, err
	}
	rcpts, err := st.Recipients(0, -1)
	if err != nil {
		return nil, err
	}
	outcomes, err := st.Outcomes()
	if err != nil {
		return nil, err
	}
	last := make(map[int]*mail.Outcome, len(outcomes))
	for i := range outcomes {
		last[outcomes[i].Rcpt] = &outcomes[i]
	}
	it := &proto.Item{ID: e.ID, Queue: e.Queue.String(), Next: e.NextAttempt, Size: e.Size,
		Attempts: e.Attempts, ForcedExpire: e.Expire}
	it.Describe(&env)
	var none mail.Outcome
	for i, rc := range rcpts {
		if st.Pending(i) {
			o := cmp.Or(last[i], &none)
			it.Recipients = append(it.Recipients, proto.ItemRcpt{Address: rc.Address, Orig: rc.Original, Reason: o.Why(), Status: o.Status})
		}
	}
	return it, nil
}

// Dropped calls f for each message that the sendmail program has left and
// that nobody has picked up yet. Who may not look there sees none, as with Postfix.
func (q *Queue) Dropped(f func(*proto.Item) bool) error { return DroppedIn(q.Dir("maildrop"), f) }

// DroppedIn is Dropped for the maildrop directory of that name.
func DroppedIn(dir string, f func(*proto.Item) bool) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range files {
		it, err := dropped(filepath.Join(dir, d.Name()))
		if err != nil || it == nil || !it.ID.Valid() {
			continue // picked up meanwhile, or not a message (yet)
		}
		if !f(it) {
			return nil
		}
	}
	return nil
}

// dropped is nil for a file that is not finished. Others may put things there:
// neither a link nor a pipe must lead root astray or hold it up.
func dropped(path string) (*proto.Item, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Mode()&0o100 == 0 || !st.Mode().IsRegular() {
		return nil, err
	}
	m, err := maildrop.NewReader(f)
	if err != nil {
		return nil, err
	}
	size, err := io.Copy(io.Discard, m)
	if err != nil {
		return nil, err
	}
	it := &proto.Item{ID: mail.QueueID(filepath.Base(path)), Queue: "maildrop", Arrival: m.Time, Size: size, Sender: m.Sender}
	for _, rc := range m.Recipients {
		it.Recipients = append(it.Recipients, proto.ItemRcpt{Address: rc.Address})
	}
	return it, nil
}
