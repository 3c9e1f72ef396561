package queueclient

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rights"
	"posthaste/internal/spool"
)

// Items calls f for each message of a mail system that is down, as the queue
// manager would list it.
func (q *Queue) Items(warn func(string, ...any), f func(*proto.Item) bool) error {
	logs, err := q.Logs()
	if err != nil {
		return err
	}
	defer logs.Close()
	return q.View(warn, func(e queue.Entry) bool {
		it, err := ReadItem(logs.Of(&e), &e)
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

// DroppedIn is Dropped for the maildrop directory of that name. Root looks there with the rights of the
// directory's owner.
func DroppedIn(dir string, f func(*proto.Item) bool) error {
	d, who, err := openMaildrop(dir)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		var it *proto.Item
		err := who.Do(func() (err error) {
			it, err = dropped(d, name)
			return err
		})
		if err != nil || it == nil || !it.ID.Valid() {
			continue // picked up meanwhile, or not a message (yet)
		}
		if !f(it) {
			return nil
		}
	}
	return nil
}

// openMaildrop opens the directory, and says whose rights are to be used for what is in it.
func openMaildrop(dir string) (*os.File, rights.Rights, error) {
	if rights.Switching() {
		return rights.OpenDirectory(dir)
	}
	d, err := os.Open(dir) // by a relative path too: who has chroot may not know another
	return d, rights.Own, err
}

// dropped is nil for a file that is not finished. Others may put things there:
// neither a link nor a pipe must lead root astray or hold it up.
func dropped(dir *os.File, name string) (*proto.Item, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
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
	it := &proto.Item{ID: mail.QueueID(name), Queue: "maildrop", Arrival: m.Time, Size: size, Sender: m.Sender}
	for _, rc := range m.Recipients {
		it.Recipients = append(it.Recipients, proto.ItemRcpt{Address: rc.Address})
	}
	return it, nil
}
