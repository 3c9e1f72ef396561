package spools

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// Own is how spool_directories names the spool in queue_directory.
const Own = "spool"

// A Place is where one spool of the queue is.
type Place struct {
	Number uint8
	Dir    string
	FS     vfs.FS // that Dir is in; nil before Plan.Reach, and for the spool in queue_directory
	Takes  bool   // it is in spool_directories
	Fresh  bool   // it is not in the record: it has had no mail of this queue
	id     spool.Identity
}

// A Plan is which spools a queue has, by main.cf and by the record of those that have had mail. It is used by one goroutine.
type Plan struct {
	Places []Place // the first is that in queue_directory
	Absent []string
	fs     vfs.FS
	own    string
	rec    record
}

// ErrMissing says that a spool is not there that may have mail.
var ErrMissing = errors.New("the mail in it would be lost sight of")

// missing is the error about a directory, with what can be done.
func (p *Plan) missing(dir, why string) error {
	absent := strings.Join(append(slices.Clone(p.Absent), dir), ", ")
	return fmt.Errorf("spool_directories: %s %s: %w, and so the start is refused, and nothing has been changed. Have it mounted there; or go on without the mail in it: postconf -e 'spool_directories_absent = %s'",
		dir, why, ErrMissing, absent)
}

// Find reads main.cf, and the record in own, which is the spool in queue_directory, of the file system fsys. An error is
// about the configuration, or the record.
func Find(fsys vfs.FS, own string, cfg *config.Config) (*Plan, error) {
	if fsys == nil {
		fsys = vfs.OfOwner(own)
	}
	p := &Plan{fs: fsys, own: own, Places: []Place{{Dir: own}}}
	var err error
	if p.rec, err = readRecord(fsys, own); err != nil {
		return nil, fmt.Errorf("spool_directories: %w", err)
	}
	wanted := cfg.List("spool_directories")
	p.Places[0].Takes = len(wanted) == 0 || slices.Contains(wanted, Own)
	for _, dir := range cfg.List("spool_directories_absent") {
		p.Absent = append(p.Absent, path.Clean(dir))
	}
	// Numbers that are given here are not in the record before Enter.
	given := p.rec.clone()
	for _, dir := range wanted {
		if dir == Own || slices.Contains(p.Absent, path.Clean(dir)) {
			continue
		}
		pl := Place{Dir: path.Clean(dir), Takes: true}
		if m := p.rec.find(pl.Dir); m != nil {
			pl.Number, pl.id = m.number, m.id
		} else {
			if pl.Number, err = given.unused(); err != nil {
				return nil, fmt.Errorf("spool_directories: %w", err)
			}
			pl.Fresh = true
			given.members = append(given.members, member{number: pl.Number})
		}
		p.Places = append(p.Places, pl)
	}
	for i := range p.rec.members {
		m := &p.rec.members[i]
		if m.state == retired || slices.Contains(p.Absent, m.dir) {
			continue
		}
		if !slices.ContainsFunc(p.Places, func(pl Place) bool { return pl.Dir == m.dir }) {
			return nil, fmt.Errorf("%w; or name it again, stop, and have \"posthaste spool drain %s\" move its mail to the others",
				p.missing(m.dir, "is not named any more"), m.dir)
		}
	}
	return p, nil
}

// Several says whether the queue is in more than the one spool in queue_directory.
func (p *Plan) Several() bool { return len(p.Places) > 1 }

// Reach opens the directories, for a process that will not find the way there later, and sees to it that each is the one
// that it was. They stay open. The error is ErrMissing for one that is not there, or is another's.
func (p *Plan) Reach() error {
	for i := range p.Places[1:] {
		pl := &p.Places[1+i]
		d, err := vfs.OpenTree(pl.Dir)
		if errors.Is(err, fs.ErrNotExist) && !pl.Fresh {
			return p.missing(pl.Dir, "is not there")
		}
		if err != nil {
			return fmt.Errorf("spool_directories: %w", err)
		}
		pl.FS = d
	}
	return p.Verify()
}

// Close closes what Reach has opened, which readers and engines go by: they are closed before.
func (p *Plan) Close() error {
	var errs []error
	for i := range p.Places[1:] {
		if d, ok := p.Places[1+i].FS.(*vfs.Dir); ok {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// Verify sees to it that the directory of each spool, in its FS, is the one that it was.
func (p *Plan) Verify() error {
	for i := range p.Places[1:] {
		pl := &p.Places[1+i]
		if pl.Fresh {
			continue
		}
		id, found, known, err := spool.IdentityOf(pl.FS, pl.Dir)
		switch {
		case err != nil:
			return fmt.Errorf("spool_directories: %w", err)
		case !found:
			return p.missing(pl.Dir, "is empty")
		case known && id != pl.id:
			return p.missing(pl.Dir, "has the spool of another queue")
		}
	}
	return nil
}

// Enter takes fresh spools into the record, when all have been opened: ids are their identities, and messages how many are in
// each, in the order of Places. It is durable on return, and only then may they get mail.
func (p *Plan) Enter(ids []spool.Identity, messages []int) error {
	news, next := false, p.rec.clone()
	for i := range p.Places {
		pl := &p.Places[i]
		switch {
		case i == 0:
		case !pl.Fresh && ids[i] != pl.id: // IDENTITY did not tell before it was opened
			return p.missing(pl.Dir, "has the spool of another queue")
		case !pl.Fresh:
		case messages[i] > 0:
			return fmt.Errorf("spool_directories: %s has %d messages, and has not been part of this queue: export and import them, or name an empty directory", pl.Dir, messages[i])
		default:
			next.members = append(next.members, member{number: pl.Number, dir: pl.Dir, id: ids[i]})
			news = true
		}
	}
	if !news {
		return nil
	}
	if err := p.replace(&next); err != nil {
		return err
	}
	for i := range p.Places[1:] {
		p.Places[1+i].Fresh, p.Places[1+i].id = false, ids[1+i]
	}
	return nil
}

// replace makes next durable, and only then the record. Whoever tries again after an error begins with what was.
func (p *Plan) replace(next *record) error {
	if err := next.write(p.fs, p.own); err != nil {
		return err
	}
	p.rec = *next
	return nil
}

// Moving are the numbers of the spools whose mail was being moved to others when that was interrupted.
func (p *Plan) Moving() (list []uint8) {
	for _, m := range p.rec.members {
		if m.state == draining {
			list = append(list, m.number)
		}
	}
	return list
}

// Away are the directories that may have mail of the queue, and are absent.
func (p *Plan) Away() (list []string) {
	for _, m := range p.rec.members {
		if m.state != retired && slices.Contains(p.Absent, m.dir) {
			list = append(list, m.dir)
		}
	}
	return list
}

// mark notes a state of a spool durably.
func (p *Plan) mark(number uint8, s state) error {
	next := p.rec.clone()
	for i := range next.members {
		if m := &next.members[i]; m.number == number && m.state != s {
			m.state = s
			return p.replace(&next)
		}
	}
	return nil
}

// Settled notes that no message is in two spools any more.
func (p *Plan) Settled(number uint8) error { return p.mark(number, joined) }

// Begin notes that the mail of a spool is going to be moved to others, and End that all has been: the queue has that spool no
// more.
func (p *Plan) Begin(number uint8) error { return p.mark(number, draining) }

// End is said at Begin.
func (p *Plan) End(number uint8) error { return p.mark(number, retired) }

// Forget has the queue go on for good without a spool that is absent. It is false when there is no such one.
func (p *Plan) Forget(dir string) (bool, error) {
	m := p.rec.find(path.Clean(dir))
	if m == nil || !slices.Contains(p.Absent, m.dir) {
		return false, nil
	}
	return true, p.mark(m.number, retired)
}

// Readers is a Reader of all places. own reads the spool in queue_directory, and open makes the reader of another one.
func (p *Plan) Readers(own storage.Reader, open func(*spool.Reader) storage.Reader) storage.Reader {
	if !p.Several() {
		return own
	}
	parts := map[uint8]storage.Reader{0: own}
	for i := range p.Places[1:] {
		pl := &p.Places[1+i]
		rd := spool.NewReader(pl.FS, pl.Dir)
		rd.UseContent(nil, "") // its own; what is elsewhere is of the one in queue_directory
		parts[pl.Number] = open(rd)
	}
	return NewReader(parts)
}
