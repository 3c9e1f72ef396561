package console

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/advice"
	"posthaste/internal/config"
	"posthaste/internal/overview"
	"posthaste/internal/servercert"
	"posthaste/internal/spools"
)

const (
	// maxAdvice bounds how many findings of a kind are kept, and maxFinding the octets of one.
	maxAdvice, maxFinding = 200, 2000
	// lowShare is the share of a disk, in per cent, that is to stay free.
	lowShare = 5
	// certSoon is when a certificate is about to expire.
	certSoon = 10 * 24 * time.Hour
	// segmentDir is where the segments of the spool are, below queue_directory. They are counted, and
	// not read.
	segmentDir = "spool/seg"
	// maxSegments bounds how many files of the spool are looked at.
	maxSegments = 100000
)

// A System is what there is to know of the machine that the mail system runs on: its disks, the
// spool, the log, the certificates, and what is odd in its configuration.
type System struct {
	At           time.Time     `json:"at"`
	Problems     []string      `json:"problems" doc:"What wants to be looked at, in sentences; empty when all is well"`
	Disks        []Disk        `json:"disks"`
	Spool        Spool         `json:"spool"`
	Log          LogFile       `json:"log"`
	Certificates []Certificate `json:"certificates" doc:"Of the SMTP server"`
	Advice       Advice        `json:"advice" doc:"What posthaste check -v says of main.cf and master.cf"`
}

// A Disk is a file system that the mail system writes to.
type Disk struct {
	Uses   []string `json:"uses" doc:"What is there: queue, data, content of large messages, history of the queue, log"`
	Path   string   `json:"path" doc:"One of the directories"`
	Octets int64    `json:"octets"`
	Free   int64    `json:"free" doc:"Octets that the mail system can use"`
	Files  int64    `json:"free_files" doc:"How many files can be made"`
}

// FreePercent is the share that is free.
func (d *Disk) FreePercent() int { return int(100 * d.Free / max(d.Octets, 1)) }

// A Spool is the log in which the queue is.
type Spool struct {
	Segments int   `json:"segments"`
	Octets   int64 `json:"octets" doc:"On disk"`
	Minfree  int64 `json:"minfree" doc:"Octets that have to be free for mail to be accepted (queue_minfree)"`
}

// A LogFile is the file that the log is written to.
type LogFile struct {
	Path    string     `json:"path,omitempty" doc:"Absent: the log goes elsewhere"`
	Octets  int64      `json:"octets,omitempty"`
	Written *time.Time `json:"written,omitempty" doc:"When the last line was written"`
	Problem string     `json:"problem,omitempty" doc:"Why it cannot be looked at"`
}

// A Certificate is one of the SMTP server's.
type Certificate struct {
	Names      []string  `json:"names"`
	Issuer     string    `json:"issuer"`
	SelfSigned bool      `json:"self_signed,omitempty"`
	Begin      time.Time `json:"not_before"`
	End        time.Time `json:"not_after"`
}

// Advice is what is to be said of the configuration as it was when the service started: at each
// start and reload of the mail system.
type Advice struct {
	At          time.Time `json:"at"`
	Mistakes    []string  `json:"mistakes" doc:"What refuses or defers mail, or is likely not meant"`
	Unwise      []string  `json:"unwise" doc:"What works, and lets strangers in or shows secrets"`
	Differences []string  `json:"differences" doc:"What Postfix would do differently with the same files"`
}

// advise looks at the configuration, with the rights of who starts the service: it reads tables
// and looks at keys. A master.cf that cannot be read has no advice; then master says so.
func advise(cfg *config.Config, now time.Time) (a Advice) {
	a = Advice{At: now, Mistakes: []string{}, Unwise: []string{}, Differences: []string{}}
	services, _, err := config.LoadMaster(cfg.Dir(), cfg)
	if err != nil {
		return a
	}
	add := func(list *[]string, text string) {
		if len(*list) < maxAdvice {
			*list = append(*list, strings.ToValidUTF8(text[:min(len(text), maxFinding)], "?"))
		}
	}
	for _, m := range advice.Mistakes(cfg, services, advice.System{}) {
		text := m.String()
		if m.Stops {
			text = "error: " + text
		}
		add(&a.Mistakes, text)
	}
	for _, line := range advice.Unwise(cfg, services) {
		add(&a.Unwise, line)
	}
	for _, line := range advice.Report(cfg, services) {
		add(&a.Differences, line)
	}
	return a
}

// A machine looks at the system. Its method may be called concurrently.
type machine struct {
	cfg    *config.Config
	keys   *servercert.Keyring // nil: the server has no certificates
	advice Advice

	mu   sync.Mutex
	last *System
}

// look says how the system is: as it was a moment ago, if somebody has just asked.
func (m *machine) look(now time.Time) *System {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil && now.Sub(m.last.At) < lookTime && !now.Before(m.last.At) {
		return m.last
	}
	s := &System{At: now, Problems: []string{}, Certificates: []Certificate{}, Advice: m.advice}
	m.disks(s)
	m.spool(s)
	m.log(s)
	m.certificates(s)
	m.last = s
	return s
}

func (s *System) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

// disks looks at the file systems, each once.
func (m *machine) disks(s *System) {
	places := []struct{ use, path string }{{"queue", m.cfg.String("queue_directory")}, {"data", m.cfg.String("data_directory")},
		{"content of large messages", m.cfg.String("spool_content_directory")}, {"history of the queue", m.cfg.String("queue_history_directory")}}
	for _, dir := range m.cfg.List("spool_directories") {
		if dir != spools.Own {
			places = append(places, struct{ use, path string }{"spool", dir})
		}
	}
	if name := m.logName(); name != "" {
		places = append(places, struct{ use, path string }{"log", filepath.Dir(name)})
	}
	at := map[unix.Fsid]int{}
	for _, p := range places {
		var st unix.Statfs_t
		if p.path == "" || unix.Statfs(p.path, &st) != nil {
			continue
		}
		i, ok := at[st.Fsid]
		if !ok {
			i = len(s.Disks)
			at[st.Fsid] = i
			s.Disks = append(s.Disks, Disk{Path: p.path, Octets: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize, Files: int64(st.Ffree)})
		}
		s.Disks[i].Uses = append(s.Disks[i].Uses, p.use)
	}
	for i := range s.Disks {
		d := &s.Disks[i]
		if d.Octets > 0 && d.FreePercent() < lowShare {
			s.problem("The disk of the %s (%s) is full but for %d %%: %s are free.", strings.Join(d.Uses, ", "), d.Path, d.FreePercent(), size(d.Free))
		}
	}
}

// needed is how many octets have to be free on the queue's disk for mail to be accepted: the SMTP
// server wants room for the largest message that goes there, too.
func (m *machine) needed() int64 {
	most := m.cfg.Bytes("message_size_limit")
	if inline := m.cfg.Bytes("spool_inline_limit"); m.cfg.String("spool_content_directory") != "" && (most == 0 || inline < most) {
		most = inline
	}
	return max(m.cfg.Bytes("queue_minfree"), most+most/2)
}

// spool looks at the segments of the queue's log.
func (m *machine) spool(s *System) {
	s.Spool.Minfree = m.needed()
	if len(s.Disks) > 0 && s.Disks[0].Free < 2*s.Spool.Minfree { // the first is the queue's
		s.problem("The disk of the queue has %s free: with less than %s (queue_minfree, message_size_limit) mail is refused.", size(s.Disks[0].Free), size(s.Spool.Minfree))
	}
	dir, err := os.Open(filepath.Join(m.cfg.String("queue_directory"), segmentDir))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // a queue in which there was never mail
			s.problem("The spool cannot be looked at: %v.", err)
		}
		return
	}
	defer dir.Close()
	list, err := dir.ReadDir(maxSegments)
	if err != nil && len(list) == 0 {
		return // it is empty
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			s.Spool.Segments++
			s.Spool.Octets += info.Size()
		}
	}
}

// logName is the file that the log is written to; empty: it goes elsewhere.
func (m *machine) logName() string {
	if name := m.cfg.String("maillog_file"); strings.HasPrefix(name, "/") && name != "/dev/stdout" {
		return name
	}
	return ""
}

// log looks at the log's file.
func (m *machine) log(s *System) {
	s.Log.Path = m.logName()
	if s.Log.Path == "" {
		return
	}
	info, err := os.Stat(s.Log.Path)
	if err != nil {
		s.Log.Problem = err.Error()
		s.problem("The log file cannot be looked at: %v.", err)
		return
	}
	written := info.ModTime()
	s.Log.Octets, s.Log.Written = info.Size(), &written
}

// certificates says until when the certificates of the SMTP server are valid.
func (m *machine) certificates(s *System) {
	if m.keys == nil {
		return
	}
	if err := m.keys.Refresh(s.At); err != nil {
		s.problem("The certificates of the SMTP server cannot be read: %v.", err)
		return
	}
	for _, k := range m.keys.Certificates() {
		leaf, err := x509.ParseCertificate(k.Certificate[0])
		if err != nil {
			continue // the server could not use it either, and says so
		}
		c := Certificate{Names: namesOf(leaf), Issuer: leaf.Issuer.String(), SelfSigned: servercert.IsSelfSigned(leaf), Begin: leaf.NotBefore, End: leaf.NotAfter}
		s.Certificates = append(s.Certificates, c)
		name := strings.Join(c.Names, ", ")
		switch {
		case s.At.After(c.End):
			s.problem("The certificate of %s expired on %s.", name, c.End.Local().Format(time.DateTime))
		case s.At.Before(c.Begin):
			s.problem("The certificate of %s is not valid before %s.", name, c.Begin.Local().Format(time.DateTime))
		case s.At.Add(certSoon).After(c.End):
			s.problem("The certificate of %s expires in %s.", name, overview.Span(c.End.Sub(s.At)))
		}
	}
}

// namesOf are the names that a certificate is for.
func namesOf(leaf *x509.Certificate) []string {
	list := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		list = append(list, ip.String())
	}
	if len(list) == 0 {
		list = append(list, leaf.Subject.CommonName)
	}
	return list
}

// size is a number of octets in words.
func size(n int64) string {
	const units = "kMGTPE"
	f, i := float64(n), -1
	for f >= 1000 && i < len(units)-1 {
		f /= 1000
		i++
	}
	switch {
	case i < 0:
		return fmt.Sprint(n, " octets")
	case f < 10:
		return fmt.Sprintf("%.1f %cB", math.Round(10*f)/10, units[i])
	}
	return fmt.Sprintf("%.0f %cB", f, units[i])
}
