package spoolmove

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pgspool"
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
	// FromElsewhere and ToElsewhere say where those of these messages are that From or To does not have, or has no
	// more: in the parts of other nodes, or nowhere. Nil: no other nodes share that queue.
	FromElsewhere, ToElsewhere func(ids []mail.QueueID) (map[mail.QueueID]pgspool.Whereabout, error)
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
	// Held are messages that an interrupted move had put on hold in parts of the queue that other nodes have taken over
	// since. The operator must release them there.
	Held []Held
}

// A Held is a message that is on hold with another node.
type Held struct {
	ID   mail.QueueID
	Node string // "": its part of the queue is nobody's for now
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
	from, err := lost(m.From, m.FromElsewhere, pairs, func(p *Pair) mail.QueueID { return p.From })
	if err != nil {
		return err
	}
	to, err := lost(m.To, m.ToElsewhere, pairs, func(p *Pair) mail.QueueID { return p.To })
	if err != nil {
		return err
	}
	s := &step{m: m}
	inFrom, inTo := m.From.NewBatch(), m.To.NewBatch()
	for _, p := range pairs {
		_, here := m.From.Locate(p.From)
		at, there := m.To.Locate(p.To)
		old, kept := from[p.From]
		now, taken := to[p.To]
		switch {
		// Nobody has delivered it meanwhile, since it was on hold: another node has it still, and only once may anybody.
		case kept && !old.Left:
			if there {
				inTo.Remove(p.To)
			}
			m.hold(p.From, &p, old.Node)
		case there && at.Queue == queue.Hold: // else it has been released already
			s.pairs = append(s.pairs, p)
		case there:
		// What another node has is safe there.
		case taken:
			if here {
				inFrom.Remove(p.From)
			}
			if !now.Left {
				m.hold(p.To, &p, now.Node)
			}
		// Without anybody who has it, it has not been moved, or is long done with, and then From does not have it either.
		case here:
			inFrom.Update(p.From, queue.Change{Set: queue.SetQueue, Queue: p.Queue})
		}
	}
	if err := m.To.Commit(inTo); err != nil {
		return err
	}
	if err := m.From.Commit(inFrom); err != nil {
		return err
	}
	return s.finish()
}

// hold notes that a node has a message on hold, unless that is where it belongs.
func (m *Mover) hold(id mail.QueueID, p *Pair, node string) {
	if p.Queue != queue.Hold {
		m.report.Held = append(m.report.Held, Held{id, node})
	}
}

// lost asks where those messages of a step are that en does not have.
func lost(en Engine, elsewhere func([]mail.QueueID) (map[mail.QueueID]pgspool.Whereabout, error), pairs []Pair, name func(*Pair) mail.QueueID) (map[mail.QueueID]pgspool.Whereabout, error) {
	var missing []mail.QueueID
	for i := range pairs {
		if _, found := en.Locate(name(&pairs[i])); !found {
			missing = append(missing, name(&pairs[i]))
		}
	}
	if elsewhere == nil || len(missing) == 0 {
		return nil, nil
	}
	return elsewhere(missing)
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
	outcomes, err := st.Outcomes()
	if err != nil {
		return a, err // now, and not when the message is on its way
	}
	for i := range outcomes {
		s.octets += len(outcomes[i].Append(nil, 'o'))
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
	// On hold in the old queue, too, nobody delivers what is in both: neither another node that takes it over, nor a mail
	// system that is started by mistake.
	if err := m.put(m.From, s.pairs, func(p *Pair) (mail.QueueID, queue.Name) {
		return p.From, queue.Hold
	}); err != nil {
		s.giveUp()
		return err
	}
	if err := m.at("held"); err != nil {
		s.giveUp()
		return err
	}
	list, err := s.states()
	if err != nil {
		s.giveUp()
		return err
	}
	// With its state at once: another node that takes the message over knows who has it.
	err = together(m.To, len(s.adds), func(b storage.Batch, i int) {
		b.Add(s.adds[i])
	}, func(b storage.Batch, i int) { b.Update(s.pairs[i].To, list[i]) })
	if err != nil {
		return err
	}
	s.adds = nil
	if err := m.at("added"); err != nil {
		return err
	}
	return s.finish()
}

// put puts messages of a step into queues of an engine, at once.
func (m *Mover) put(en Engine, pairs []Pair, where func(*Pair) (mail.QueueID, queue.Name)) error {
	b := en.NewBatch()
	for i := range pairs {
		id, name := where(&pairs[i])
		b.Update(id, queue.Change{Set: queue.SetQueue, Queue: name})
	}
	return en.Commit(b)
}

// finish does the rest, for messages that are on hold in To: some may not be in From any more.
func (s *step) finish() error {
	if len(s.pairs) == 0 {
		return nil
	}
	m := s.m
	if err := s.hands(); err != nil {
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
	if err := m.put(m.To, s.pairs, func(p *Pair) (mail.QueueID, queue.Name) {
		return p.To, p.Queue
	}); err != nil {
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

// states reads how the messages of the step stand in From, which has all of them.
func (s *step) states() (list []queue.Change, err error) {
	for _, p := range s.pairs {
		e, found := s.m.From.Locate(p.From)
		if !found {
			return nil, fmt.Errorf("%s: %w", p.From, queue.ErrStale) // nobody else changes this queue
		}
		c, err := s.m.state(&e)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// hands says in To what agents had in hand of messages that are still in From.
func (s *step) hands() error {
	type doubtful struct {
		to   mail.QueueID
		list []queue.Doubt
	}
	var all []doubtful
	for _, p := range s.pairs {
		if e, found := s.m.From.Locate(p.From); found { // else it has been said
			if list := s.m.inDoubt(&e); len(list) > 0 {
				all = append(all, doubtful{p.To, list})
			}
		}
	}
	return together(s.m.To, len(all), func(b storage.Batch, i int) {
		for _, d := range all[i].list {
			b.Handed(all[i].to, d.Rcpts, d.Nexthop)
		}
	})
}

// together commits n changes at once, or each by itself when they are too much for one batch, or each of its parts, in
// their order.
func together(en Engine, n int, parts ...func(b storage.Batch, i int)) error {
	b := en.NewBatch()
	for i := range n {
		for _, put := range parts {
			put(b, i)
		}
	}
	err := en.Commit(b)
	if !errors.Is(err, queue.ErrTooLarge) || n*len(parts) < 2 {
		return err
	}
	for i := range n {
		if n > 1 {
			err = together(en, 1, func(b storage.Batch, _ int) {
				for _, put := range parts {
					put(b, i)
				}
			})
		}
		for k := 0; n == 1 && k < len(parts); k++ {
			err = together(en, 1, parts[k])
		}
		if err != nil {
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
