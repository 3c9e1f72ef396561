package spoolmove

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

const (
	// stepMessages, stepOctets and stepFiles bound a step: its messages, what of them is in memory, in octets, about,
	// and those whose content is in files.
	stepMessages = 256
	stepOctets   = 4 << 20
	stepFiles    = 16
)

// An Engine is what is asked of the two engines, as storage.Engine has it.
type Engine interface {
	Lease(n int) (first uint64, err error)
	NewBatch() storage.Batch
	NewFile() (storage.ContentFile, error)
	InlineLimit() int
	Commit(b storage.Batch) error
	Locate(id mail.QueueID) (queue.Entry, bool)
	Page(cursor uint64, list []queue.Placed) (_ []queue.Placed, next uint64)
	InHand(id mail.QueueID, rcpts []int) []int
}

// A Mover moves all mail of one engine to another. Nobody else changes either of them meanwhile, but for other nodes
// their own parts. It is used by one goroutine.
type Mover struct {
	From, To Engine
	Reader   storage.Reader // of From
	// Doubts are what From has found when it was opened: deliveries that may have been made.
	Doubts  []queue.Doubt
	Journal *Journal
	// Elsewhere says where those of these messages are that have been put into To and that it does not have: in the
	// parts of other nodes, by their names, "" if they have left the queue. Nil: there are no other nodes.
	Elsewhere func(ids []mail.QueueID) (map[mail.QueueID]string, error)
	// Moved is told of each message that has been moved. Nil: nobody is.
	Moved func(from, to mail.QueueID)
	Warn  func(format string, args ...any)

	crash func(point string) bool // tests: whether to end here, as if killed; nil: never

	report Report
	left   map[mail.QueueID]bool // that cannot be read: they stay where they are
	doubt  map[mail.QueueID][]queue.Doubt
}

// A Report is what a Mover has done.
type Report struct {
	Moved int // messages
	Left  int // that cannot be read, and stay where they are
	// Held are messages that an interrupted move had put into parts of the queue that other nodes have taken over since.
	// They are on hold there, and the operator must release them.
	Held []Held
}

// A Held is a message that is on hold with another node.
type Held struct {
	ID   mail.QueueID
	Node string
}

// errCrash is what crash makes of a move.
var errCrash = errors.New("killed")

// at is a point at which a test may end the move.
func (m *Mover) at(point string) error {
	if m.crash != nil && m.crash(point) {
		return errCrash
	}
	return nil
}

// Run moves the mail. After an error it can be run again, by another process too: nothing is lost, and nothing is
// there twice. What cannot be read is told of, and stays. Errors are those of the engines, and of the journal.
func (m *Mover) Run() (Report, error) {
	m.left, m.doubt = map[mail.QueueID]bool{}, map[mail.QueueID][]queue.Doubt{}
	for _, d := range m.Doubts {
		m.doubt[d.ID] = append(m.doubt[d.ID], d)
	}
	if err := m.resume(); err != nil {
		return m.report, err
	}
	// Parts of the queue may come into From while the others are moved.
	for again := true; again; {
		again = false
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var list []queue.Placed
			list, cursor = m.From.Page(cursor, nil)
			n, err := m.page(list)
			if err != nil {
				return m.report, err
			}
			again = again || n > 0
		}
	}
	m.report.Left = len(m.left)
	return m.report, m.Journal.Clear()
}

// page moves the messages of a page, in steps, and returns how many it was.
func (m *Mover) page(list []queue.Placed) (n int, err error) {
	for len(list) > 0 {
		s := &step{m: m}
		for len(list) > 0 && !s.full() {
			e := &list[0].Entry
			list = list[1:]
			if m.left[e.ID] {
				continue
			}
			if err := s.add(e); err != nil {
				s.giveUp()
				return n, err
			}
		}
		if len(s.pairs) == 0 {
			continue
		}
		if err := s.run(); err != nil {
			return n, err
		}
		n += len(s.pairs)
	}
	return n, nil
}

// resume ends the step that was under way when a move was interrupted.
func (m *Mover) resume() error {
	pairs, err := m.Journal.Load()
	if err != nil || len(pairs) == 0 {
		return err
	}
	var missing []mail.QueueID
	for i := range pairs {
		if _, found := m.To.Locate(pairs[i].To); !found {
			missing = append(missing, pairs[i].To)
		}
	}
	elsewhere := map[mail.QueueID]string{}
	if m.Elsewhere != nil && len(missing) > 0 {
		if elsewhere, err = m.Elsewhere(missing); err != nil {
			return err
		}
	}
	s := &step{m: m}
	gone := m.From.NewBatch()
	for _, p := range pairs {
		if at, found := m.To.Locate(p.To); found {
			if at.Queue == queue.Hold { // else it has been released already
				s.pairs = append(s.pairs, p)
			}
			continue
		}
		// What another node has is safe there. Without anybody who has it, it has not been moved, or is long done with, and
		// then From does not have it either.
		node, there := elsewhere[p.To]
		if !there {
			continue
		}
		if _, found := m.From.Locate(p.From); found {
			gone.Remove(p.From)
		}
		if node != "" {
			m.report.Held = append(m.report.Held, Held{p.To, node})
		}
	}
	if err := m.From.Commit(gone); err != nil {
		return err
	}
	return s.finish()
}

// A step is messages that are moved together.
type step struct {
	m      *Mover
	pairs  []Pair
	adds   []storage.Addition
	octets int
	files  int
}

func (s *step) full() bool {
	return len(s.adds) >= stepMessages || s.octets >= stepOctets || s.files >= stepFiles
}

// giveUp frees what has been read.
func (s *step) giveUp() {
	for i := range s.adds {
		if f := s.adds[i].File; f != nil {
			f.Abort()
		}
	}
}

// add reads a message into the step. One that cannot be read stays where it is.
func (s *step) add(e *queue.Entry) error {
	m := s.m
	if e.NPending == 0 {
		return m.remove(e.ID) // there is nothing to do for anybody
	}
	a, err := s.read(e)
	if damaged(err) {
		m.left[e.ID] = true
		m.Warn("%s stays where it is: %v", e.ID, err)
		return nil
	}
	if err != nil {
		return err
	}
	s.octets += len(a.Envelope) + len(a.Recipients) + len(a.Content)
	if a.File != nil {
		s.files++
	}
	s.adds = append(s.adds, a)
	s.pairs = append(s.pairs, Pair{From: e.ID, To: a.ID, Queue: e.Queue})
	return nil
}

// damaged says that err is of one message alone.
func damaged(err error) bool {
	return errors.Is(err, queue.ErrCorrupt) || errors.Is(err, queue.ErrUnread) || errors.Is(err, queue.ErrStale)
}

// remove takes a message out of From.
func (m *Mover) remove(id mail.QueueID) error {
	b := m.From.NewBatch()
	b.Remove(id)
	return m.From.Commit(b)
}

// read reads a message, under its new ID, on hold.
func (s *step) read(e *queue.Entry) (a storage.Addition, err error) {
	st, err := s.m.Reader.Read(e.Ref, e.ID)
	if err != nil {
		return a, err
	}
	env, err := st.Envelope()
	if err != nil {
		return a, err
	}
	rcpts, err := st.Recipients(0, -1)
	if err != nil {
		return a, err
	}
	created, _, err := e.ID.Parse()
	if err != nil {
		return a, fmt.Errorf("%w: its queue ID: %w", queue.ErrCorrupt, err)
	}
	number, err := s.m.To.Lease(1)
	if err != nil {
		return a, err
	}
	if env.LogIdent == "" {
		env.LogIdent = string(e.ID)
	}
	env.ID, env.Recipients = mail.MakeQueueID(created, number), nil
	a = storage.Addition{ID: env.ID, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, rcpts), NRcpt: len(rcpts),
		Queue: queue.Hold, NextAttempt: e.NextAttempt}
	return a, s.content(st, &a)
}

// content reads the content of a message into a.
func (s *step) content(st storage.Stored, a *storage.Addition) error {
	c, err := st.Content()
	if err != nil {
		return err
	}
	defer c.Close()
	if c.Len() <= int64(s.m.To.InlineLimit()) {
		var b bytes.Buffer
		if _, err := c.WriteTo(&b); err != nil {
			return err
		}
		a.Content = append([]byte{}, b.Bytes()...)
		return nil
	}
	f, err := s.m.To.NewFile()
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(f); err != nil {
		f.Abort()
		return err
	}
	a.File = f
	return nil
}

// run moves the messages of the step: see the package comment for the order.
func (s *step) run() error {
	m := s.m
	if err := m.Journal.Save(s.pairs); err != nil {
		s.giveUp()
		return err
	}
	if err := m.at("noted"); err != nil {
		s.giveUp()
		return err
	}
	err := together(m.To, len(s.adds), func(b storage.Batch, i int) { b.Add(s.adds[i]) })
	if err != nil {
		return err
	}
	s.adds = nil
	if err := m.at("added"); err != nil {
		return err
	}
	return s.finish()
}

// finish does the rest, for messages that are on hold in To: some may not be in From any more.
func (s *step) finish() error {
	if len(s.pairs) == 0 {
		return nil
	}
	m := s.m
	if err := s.states(); err != nil {
		return err
	}
	if err := m.at("told"); err != nil {
		return err
	}
	b := m.From.NewBatch()
	for _, p := range s.pairs {
		if _, found := m.From.Locate(p.From); found {
			b.Remove(p.From)
		}
	}
	if err := m.From.Commit(b); err != nil {
		return err
	}
	if err := m.at("removed"); err != nil {
		return err
	}
	b = m.To.NewBatch()
	for _, p := range s.pairs {
		b.Update(p.To, queue.Change{Set: queue.SetQueue, Queue: p.Queue})
	}
	if err := m.To.Commit(b); err != nil {
		return err
	}
	for _, p := range s.pairs {
		m.report.Moved++
		if m.Moved != nil {
			m.Moved(p.From, p.To)
		}
	}
	return m.at("released")
}

// states gives the messages that are still in From their state in To, and says there what agents had in hand.
func (s *step) states() error {
	m := s.m
	type told struct {
		to     mail.QueueID
		change queue.Change
		doubts []queue.Doubt
	}
	var list []told
	octets := 0
	flush := func() error {
		err := together(m.To, len(list), func(b storage.Batch, i int) {
			b.Update(list[i].to, list[i].change)
			for _, d := range list[i].doubts {
				b.Handed(list[i].to, d.Rcpts, d.Nexthop)
			}
		})
		list, octets = list[:0], 0
		return err
	}
	for _, p := range s.pairs {
		e, found := m.From.Locate(p.From)
		if !found {
			continue // then it has it
		}
		c, err := m.state(&e)
		if err != nil {
			return err
		}
		list = append(list, told{p.To, c, m.inDoubt(&e)})
		for i := range c.Outcomes {
			octets += len(c.Outcomes[i].Append(nil, 'o'))
		}
		if octets >= stepOctets {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// together commits n changes at once, or each by itself when they are too much for one batch.
func together(en Engine, n int, put func(b storage.Batch, i int)) error {
	b := en.NewBatch()
	for i := range n {
		put(b, i)
	}
	err := en.Commit(b)
	if n < 2 || !errors.Is(err, queue.ErrTooLarge) {
		return err
	}
	for i := range n {
		b = en.NewBatch()
		put(b, i)
		if err := en.Commit(b); err != nil {
			return err
		}
	}
	return nil
}

// state is how a message of From stands, but for its queue.
func (m *Mover) state(e *queue.Entry) (c queue.Change, err error) {
	st, err := m.Reader.Read(e.Ref, e.ID)
	if err != nil {
		return c, err
	}
	st.Overlay(e.Done)
	c = queue.Change{Set: queue.SetAttempts | queue.SetWarned | queue.SetExpire, Attempts: e.Attempts, Warned: e.Warned, Expire: e.Expire}
	if !e.NextAttempt.IsZero() {
		c.Set |= queue.SetNextAttempt
		c.NextAttempt = e.NextAttempt
	}
	outcomes, err := st.Outcomes()
	if err != nil {
		return c, err
	}
	for _, o := range outcomes {
		if st.Pending(o.Rcpt) {
			c.Outcomes = append(c.Outcomes, o)
		}
	}
	for i := range st.NRcpt() {
		if !st.Pending(i) {
			c.Done = append(c.Done, i)
		}
	}
	return c, nil
}

// inDoubt is the deliveries of a message that may have been made: what agents had in hand when the mail system ended
// without an end of its own. They are in doubt in To from then on.
func (m *Mover) inDoubt(e *queue.Entry) (list []queue.Doubt) {
	known := map[int]bool{}
	pending := func(i int) bool { return i < e.NRcpt && (i/8 >= len(e.Done) || e.Done[i/8]>>(i%8)&1 == 0) }
	put := func(rcpts []int, nexthop string, at time.Time) {
		d := queue.Doubt{Nexthop: nexthop, At: at}
		for _, i := range rcpts {
			if pending(i) && !known[i] {
				known[i] = true
				d.Rcpts = append(d.Rcpts, i)
			}
		}
		if len(d.Rcpts) > 0 {
			list = append(list, d)
		}
	}
	all := make([]int, e.NRcpt)
	for i := range all {
		all[i] = i
	}
	for _, d := range m.doubt[e.ID] {
		if d.Kind != queue.DoubtHanded {
			d.Rcpts = all
		}
		put(d.Rcpts, d.Nexthop, d.At)
	}
	put(m.From.InHand(e.ID, all), "", time.Time{}) // those beyond the bound of what is listed, and those without agents
	return list
}
