package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// placeFile says in the spool's directory where its content files are, when that is
// not big/. Without the file they are there.
const placeFile = "CONTENT"

const (
	contentMagic   = "PHPLACE1"
	contentVersion = 1
	contentPath    = 16 // where the path begins in the record
	// maxContentPath bounds a path in CONTENT, in octets.
	maxContentPath = blockSize - contentPath - 4
)

// A contentPlace is a directory of content files: big/ of the spool, or one elsewhere, which may be on
// another file system.
type contentPlace struct {
	fs  vfs.FS
	dir string
	// away says that it is not the spool's own: it has a copy of IDENTITY, room of its own, and
	// failures of its own.
	away bool
}

func bigPlace(fsys vfs.FS, dir string) contentPlace {
	return contentPlace{fsys, path.Join(dir, bigDir), false}
}

// awayPlace is dir, or big/ of the spool when it is "".
func awayPlace(own vfs.FS, spoolDir string, fsys vfs.FS, dir string) contentPlace {
	if dir == "" {
		return bigPlace(own, spoolDir)
	}
	if fsys == nil {
		fsys = own
	}
	return contentPlace{fsys, path.Clean(dir), true}
}

// name is that of the content file of a message.
func (p *contentPlace) name(id string) string { return path.Join(p.dir, id) }

func (p *contentPlace) sync() error { return p.fs.SyncDir(p.dir) }

// isContent says whether a name is one that the spool gives in a place.
func isContent(name string) bool {
	if strings.HasPrefix(name, vfs.TempPrefix) {
		return true
	}
	_, _, err := mail.QueueID(strings.TrimSuffix(name, spentSuffix)).Parse()
	return err == nil
}

// foreign is the first of the names that is neither the spool's nor the file system's own; or "".
func foreign(names []string) string {
	for _, n := range names {
		if n != identityFile && n != "lost+found" && !isContent(n) {
			return n
		}
	}
	return ""
}

// putPlace is the content of CONTENT: the same record in each of two blocks, so that there is always
// a sound one.
func putPlace(dir string) []byte {
	le := binary.LittleEndian
	b := make([]byte, 2*blockSize)
	copy(b, contentMagic)
	le.PutUint16(b[8:], contentVersion)
	le.PutUint16(b[10:], uint16(len(dir)))
	copy(b[contentPath:], dir)
	le.PutUint32(b[blockSize-4:], checksum(b[:blockSize-4]))
	copy(b[blockSize:], b[:blockSize])
	return b
}

// A record of CONTENT, as far as it can be read.
type recordedPlace struct {
	there  bool   // there is such a file
	dir    string // "": big/, or not known
	copies int    // sound records in the file, of that directory
}

// known says whether it is known where content was.
func (r *recordedPlace) known() bool { return !r.there || r.copies > 0 }

// String is where content was, for people.
func (r *recordedPlace) in(spoolDir string) string {
	switch {
	case !r.there:
		return path.Join(spoolDir, bigDir)
	case r.copies == 0:
		return fmt.Sprintf("a directory that is not known, as %s is damaged", path.Join(spoolDir, placeFile))
	}
	return r.dir
}

// readPlace reads CONTENT in dir.
func readPlace(fsys vfs.FS, dir string, open func(vfs.File, string) vfs.File) (rec recordedPlace, err error) {
	name := path.Join(dir, placeFile)
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err != nil {
		return rec, err
	}
	rec.there = true
	b := make([]byte, 2*blockSize)
	readAround(open(f, name), b, 0)
	le := binary.LittleEndian
	for at := 0; at < len(b); at += blockSize {
		c := b[at : at+blockSize]
		n := int(le.Uint16(c[10:]))
		if string(c[:8]) != contentMagic || checksum(c[:blockSize-4]) != le.Uint32(c[blockSize-4:]) || n > maxContentPath {
			continue
		}
		if v := le.Uint16(c[8:]); v != contentVersion {
			return rec, errors.Join(&errNewer{fmt.Sprintf("%s (format %d)", name, v)}, f.Close())
		}
		where := string(c[contentPath : contentPath+n])
		switch {
		case rec.copies == 0:
			rec.dir, rec.copies = where, 1
		case rec.dir == where:
			rec.copies++
		}
	}
	return rec, f.Close()
}

func asItIs(f vfs.File, _ string) vfs.File { return f }

// ContentDir says where the content files are of the spool in dir: "" is big/ in it. An error
// is that nothing tells.
func ContentDir(fsys vfs.FS, dir string) (string, error) {
	if fsys == nil {
		fsys = vfs.OfOwner(dir)
	}
	rec, err := readPlace(fsys, dir, asItIs)
	if err == nil && !rec.known() {
		err = fmt.Errorf("%w: %s does not say where the content of large messages is", ErrUnread, path.Join(dir, placeFile))
	}
	return rec.dir, err
}

// ErrContent says that the directory for content files is not the one that has what the queue
// refers to, or cannot be used.
var ErrContent = errors.New("the directory for the content of large messages")

func contentError(format string, args ...any) error {
	return fmt.Errorf("spool: %w: %s. Nothing has been changed", ErrContent, fmt.Sprintf(format, args...))
}

// placeState is what a start finds of the place that it was told.
type placeState struct {
	rec     recordedPlace
	names   []string // in the directory
	absent  bool     // there is no such directory
	id      identity // of its IDENTITY
	hadID   bool     // there is an IDENTITY
	copies  int      // sound records in that
	missing int      // content files that messages in the queue have and that are not in it
	first   string   // one of these
	refs    int      // content files that messages in the queue have
}

// lookAtPlace finds out how the place of content files stands to what has been replayed.
func (r *recovery) lookAtPlace(rec recordedPlace) (s placeState, err error) {
	e := r.e
	s.rec = rec
	if s.names, err = e.content.fs.List(e.content.dir); errors.Is(err, fs.ErrNotExist) {
		s.absent = true
	} else if err != nil {
		return s, fmt.Errorf("spool: %w", err)
	}
	if e.content.away && !s.absent {
		s.id, s.hadID, s.copies, err = readIdentity(e.content.fs, e.content.dir, r.idPatience.file)
		if err != nil {
			return s, fmt.Errorf("spool: %w", err)
		}
	}
	have := make(map[string]bool, len(s.names))
	for _, n := range s.names {
		have[n] = true
	}
	var room live
	for number := range e.idx.big {
		l := e.idx.find(number, &room)
		if Queue(l.queue) == Corrupt {
			continue // an earlier start may have said that its content is gone
		}
		s.refs++
		if id := string(l.id()); !have[id] {
			s.missing++
			if s.first == "" || id < s.first {
				s.first = id
			}
		}
	}
	return s, nil
}

// moved says whether content was in another place before.
func (s *placeState) moved(p *contentPlace) bool {
	was := "" // big/
	if s.rec.there {
		was = s.rec.dir
	}
	now := ""
	if p.away {
		now = p.dir
	}
	return s.rec.known() && was != now
}

// refusal says why the spool must not be opened with this place, or nil: it is a missing file
// system's mount point, or another spool's, or what the queue refers to is elsewhere.
func (r *recovery) refusal(s *placeState) error {
	e := r.e
	dir, was := e.content.dir, s.rec.in(e.dir)
	ours := s.copies > 0 && s.id.uuid == e.uuid
	used := e.content.away && s.rec.known() && !s.moved(&e.content) // by this spool, at its last start
	files := fmt.Sprintf("%d messages in the queue have content in %s, of which %d are not in %s (%s is one)", s.refs, was, s.missing, dir, s.first)
	again := fmt.Sprintf("Mount its file system. If what was there is lost for good, make the directory, for the same owner, and copy %s to it: "+
		"messages that have lost their content then go to the corrupt queue", path.Join(e.dir, identityFile))
	switch {
	case s.copies > 0 && !ours:
		return contentError("%s is that of another spool (%x, and not %x as %s is): name one for this spool alone, or mount the right file system",
			dir, s.id.uuid, e.uuid, e.dir)
	case s.missing > 0 && s.moved(&e.content):
		return contentError("%s. Move all files in %s to %s first, or set spool_content_directory to what it was", files, was, dir)
	case s.absent && (used || s.missing > 0):
		return contentError("%s, where %s has it, is not there. %s", dir, e.dir, again)
	case e.content.away && !ours && (s.missing > 0 || used && s.refs == 0 && !s.hadID):
		return contentError("%s, where %s has it, has no %s of this spool: a file system is not mounted there. %s", dir, e.dir, identityFile, again)
	case e.content.away && !ours && !s.hadID && foreign(s.names) != "":
		return contentError("%s has something else in it (%s): name an empty directory", dir, foreign(s.names))
	}
	return nil
}

// settlePlace sees to it that the place for content files is the right one, before anything
// is written, and then has it say whose it is, and the spool where it is.
func (r *recovery) settlePlace() error {
	e := r.e
	rec, err := readPlace(e.fs, e.dir, r.idPatience.file)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if !e.content.away && !rec.there {
		return nil // big/, as ever
	}
	s, err := r.lookAtPlace(rec)
	if err != nil {
		return err
	}
	if err := r.refusal(&s); err != nil && !e.planted(plantAnyPlace) {
		return err
	}
	if !e.content.away {
		if err := e.fs.Remove(path.Join(e.dir, placeFile)); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		return e.fs.SyncDir(e.dir)
	}
	if err := e.content.fs.MkdirAll(e.content.dir); err != nil {
		return fmt.Errorf("spool: %w; the directory must belong to the mail system's user", err)
	}
	recorded := s.rec.dir == e.content.dir && s.rec.copies > 0
	if s.copies < 2 || !recorded { // until CONTENT says so a process may have died before IDENTITY was durable
		if err := r.writeIdentity(e.content.fs, e.content.dir, s.hadID); err != nil {
			return fmt.Errorf("spool: %s: %w", path.Join(e.content.dir, identityFile), err)
		}
	}
	if !e.planted(plantNoDirSyncStart) {
		if err := e.content.sync(); err != nil { // the names in it: the last process may not have
			return fmt.Errorf("spool: %w", err)
		}
	}
	if recorded && s.rec.copies == 2 {
		return nil
	}
	return e.recordPlace(s.rec.there)
}

// recordPlace writes CONTENT, one record after the other, so that one of them is sound at any time.
func (e *engine) recordPlace(there bool) error {
	name := path.Join(e.dir, placeFile)
	open := e.fs.Create
	if there {
		open = e.fs.OpenWrite
	}
	f, err := open(name)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	b := putPlace(e.content.dir)
	for at := int64(0); at < int64(len(b)) && err == nil; at += blockSize {
		if _, err = f.WriteAt(b[at:at+blockSize], at); err == nil {
			err = f.Datasync()
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("spool: %s: %w", name, err)
	}
	return e.fs.SyncDir(e.dir)
}

// contentPause is how long no large message is taken after the directory for content files could
// not be made durable, when it is on a file system of its own.
const contentPause = 10 * time.Second

// outage is a failure of a place that is away. It concerns large messages alone.
type outage struct {
	until time.Time // no file is begun before; zero: all is well
	err   error
	count int // of failures: what was begun before one is not accepted after it
}

// contentDown notes that the directory for content files failed, and gives the error of the
// message that found out.
func (e *engine) contentDown(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.out.until, e.out.err, e.out.count = e.now().Add(contentPause), err, e.out.count+1
	return err
}

// contentUp says why no content file can be begun, or nil, and which outage was the last. After a
// pause it tries what a start does: a name that could not be made durable belongs to no
// message, and what is begun from then on is written, name and all, from the beginning.
func (e *engine) contentUp() (outages int, err error) {
	e.mu.RLock()
	out := e.out
	e.mu.RUnlock()
	if out.until.IsZero() {
		return out.count, nil
	}
	if e.now().Before(out.until) {
		return 0, fmt.Errorf("%w: %s: %w; it is tried again after %v", ErrUnstored, e.content.dir, out.err, contentPause)
	}
	if err := e.content.sync(); err != nil {
		return 0, e.fileError(e.contentDown(fmt.Errorf("sync of content directory: %w", err)))
	}
	e.bigSync.reset()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.out.until = time.Time{}
	return e.out.count, nil
}

// syncNames makes durable what names there are of content files, before a message is
// committed that has one.
func (e *engine) syncNames(f *File) error {
	err := e.bigSync.sync(e.content.sync)
	if err != nil && !e.content.away {
		return e.fail("sync of content directory", err)
	}
	if err != nil {
		return e.fileError(e.contentDown(fmt.Errorf("sync of content directory: %w", err)))
	}
	if !e.content.away {
		return nil
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if f.outages != e.out.count {
		return fmt.Errorf("%w: %s failed meanwhile: %w", ErrUnstored, e.content.dir, e.out.err)
	}
	return nil
}

// fullContent holds the free space of a place that is away against MinFree.
func (e *engine) fullContent() error {
	free, err := e.content.fs.Free(e.content.dir)
	if err == nil && free < e.lim.minFree && e.dropSpent() {
		free, err = e.content.fs.Free(e.content.dir)
	}
	if err == nil && free < e.lim.minFree { // after an error writing will tell
		return fmt.Errorf("%w: %d bytes free on the file system of %s, queue_minfree is %d", ErrFull, free, e.content.dir, e.lim.minFree)
	}
	return nil
}

// A readerPlace is where a Reader finds content files.
type readerPlace struct {
	contentPlace
	told bool // by UseContent
	sure bool // it is the right one: nothing more is looked at
}

// UseContent has r read content files in dir, with fsys; nil: r's own. "" is big/ in the spool.
// It must be called before any other method. Who does not call it has r go by what the spool
// says, which a process that begins before the spool is there, or has given up its rights by
// then, cannot do. fsys stays its opener's to close.
func (r *Reader) UseContent(fsys vfs.FS, dir string) {
	r.content = readerPlace{contentPlace: awayPlace(r.fs, r.dir, fsys, dir), told: true}
	r.content.sure = !r.content.away
}

// CheckContent says why content cannot be had where UseContent says, if the spool has had it there
// before.
func (r *Reader) CheckContent() error {
	if !r.content.away {
		return nil
	}
	if dir, err := ContentDir(r.fs, r.dir); err != nil || dir != r.content.dir {
		return nil // the writer of the spool says what is wrong, if anything is
	}
	_, err := r.place()
	return err
}

// place is where content files are. The error is ErrUnread when it is not there: its file
// system may not be mounted, and the content of a message is neither gone nor damaged for that.
func (r *Reader) place() (contentPlace, error) {
	r.placeMu.Lock()
	defer r.placeMu.Unlock()
	c := &r.content
	if c.sure {
		return c.contentPlace, nil
	}
	if !c.told {
		dir, err := ContentDir(r.fs, r.dir)
		if err != nil {
			return contentPlace{}, err
		}
		c.contentPlace = awayPlace(r.fs, r.dir, nil, dir)
	}
	if err := r.verify(&c.contentPlace); err != nil {
		return contentPlace{}, err
	}
	c.sure = true
	return c.contentPlace, nil
}

// verify says whether a place is this spool's.
func (r *Reader) verify(p *contentPlace) error {
	if !p.away {
		return nil
	}
	key, err := r.spoolKey(nil)
	if err != nil {
		return err
	}
	id, found, copies, err := readIdentity(p.fs, p.dir, asItIs)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrUnread, p.dir, err)
	case !found || copies == 0:
		return fmt.Errorf("%w: %s has no %s: the file system with the content of large messages may not be mounted", ErrUnread, p.dir, identityFile)
	case keyOf(id.uuid) != key && !r.planted(plantNoSalt):
		return fmt.Errorf("%w: %s is that of another spool", ErrUnread, p.dir)
	}
	return nil
}

// openContent opens the content file of a message. The error is ErrStale when it is not there.
func (r *Reader) openContent(id mail.QueueID) (vfs.File, error) {
	p, err := r.place()
	if err != nil {
		return nil, err
	}
	f, err := p.fs.OpenShared(p.name(string(id))) // not to be used again before it is closed
	if errors.Is(err, fs.ErrNotExist) {
		if verr := r.verify(&p); verr != nil { // the whole directory has gone
			return nil, verr
		}
		err = fmt.Errorf("%w: %w", ErrStale, err) // finished meanwhile, or damage: Locate knows
	}
	return f, err
}

// checkPlace says, in a spool that is only looked at, what would keep it from being opened with the
// place that it says itself.
func (r *recovery) checkPlace() error {
	e := r.e
	rec, err := readPlace(e.fs, e.dir, r.idPatience.file)
	if err != nil || !rec.there {
		return err
	}
	if !rec.known() {
		r.alarm("%s is damaged, both records: where the content of large messages is, only spool_content_directory says", path.Join(e.dir, placeFile))
		return nil
	}
	if rec.copies == 1 {
		e.warn("spool: %s: one of its two records is damaged, or an older one; the next start writes it again", path.Join(e.dir, placeFile))
	}
	s, err := r.lookAtPlace(rec)
	if err == nil {
		err = r.refusal(&s)
	}
	if err != nil {
		r.alarm("%v", err)
	}
	return nil
}

// CheckPlace says why a start would refuse to have content files in contentDir, "" being big/ of
// the spool, without writing anything. It replays the log where that takes it: when the
// place is another one than at the last start, or seems not to be there. With a spool that is open, or
// cannot be read, it says nothing that a start would not.
func CheckPlace(fsys vfs.FS, dir, contentDir string) error {
	if fsys == nil {
		fsys = vfs.OfOwner(dir)
	}
	rec, err := readPlace(fsys, dir, asItIs)
	if err != nil {
		return err
	}
	p := awayPlace(fsys, dir, nil, contentDir)
	s := placeState{rec: rec}
	if !p.away && !rec.there {
		return nil
	}
	own, there, sound, err := readIdentity(fsys, dir, asItIs)
	if err != nil {
		return err
	}
	if p.away {
		id, _, copies, err := readIdentity(p.fs, p.dir, asItIs)
		if err != nil {
			return err
		}
		if copies > 0 && sound > 0 && id.uuid == own.uuid && !s.moved(&p) {
			return nil
		}
	}
	if there && sound == 0 {
		return nil // the start has to find out first which spool it is
	}
	return wouldRefuse(fsys, dir, &p, rec, there)
}

// wouldRefuse replays the log, if there is one, for refusal.
func wouldRefuse(fsys vfs.FS, dir string, p *contentPlace, rec recordedPlace, there bool) error {
	quiet := func(string, ...any) {}
	e := &engine{fs: readOnly{fsys}, dir: dir, warn: quiet, sleep: time.Sleep, readOnly: true, idx: newIndex(), segs: map[uint32]*segment{}}
	r := newRecovery(e)
	if there {
		var err error
		if e, r, err = view(fsys, dir, false, quiet); err != nil {
			return nil // a start says what is wrong with it
		}
	}
	e.content = *p
	s, err := r.lookAtPlace(rec)
	if err == nil {
		err = r.refusal(&s)
	}
	return errors.Join(err, e.closeFiles())
}
