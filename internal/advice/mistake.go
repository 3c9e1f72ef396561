package advice

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
)

// A Mistake is something in the configuration, or in what it names, that will not work
// as it was meant.
type Mistake struct {
	File  string // where it is, or "" if no line says it
	Line  int    // from 1; 0 if it is not of one line
	Text  string // what is wrong, and what to do
	Stops bool   // mail will be deferred or refused for it

	Complaint bool // a service says so itself when it reads its settings
}

// String is the mistake in one line, its place first.
func (m Mistake) String() string {
	switch {
	case m.File == "":
		return m.Text
	case m.Line == 0:
		return m.File + ": " + m.Text
	}
	return fmt.Sprintf("%s:%d: %s", m.File, m.Line, m.Text)
}

// A System is what Mistakes looks at outside of the configuration. The zero value is the
// machine itself; a test has its own.
type System struct {
	User func(name string) error // why there is no such user, or group after a colon
	Stat func(path string) (fs.FileInfo, error)
	Free func(path string) (bytes int64, err error) // on the file system of path
	Port func(cfg *config.Config, name string) error
	Own  func() ([]netip.Addr, error) // the machine's addresses
	Now  func() time.Time             // what certificates are held against
}

func (s System) filled() System {
	if s.User == nil {
		s.User = knownUser
	}
	if s.Stat == nil {
		s.Stat = os.Stat
	}
	if s.Free == nil {
		s.Free = freeBytes
	}
	if s.Port == nil {
		s.Port = func(cfg *config.Config, name string) error { _, err := cfg.Port(name); return err }
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Own == nil {
		s.Own = ownAddresses
	}
	return s
}

func ownAddresses() (list []netip.Addr, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr().Unmap())
		}
	}
	return list, err
}

func knownUser(name string) error {
	name, group, grouped := strings.Cut(name, ":")
	if _, err := user.Lookup(name); err != nil {
		return fmt.Errorf("there is no user %s", name)
	}
	if _, err := user.LookupGroup(group); grouped && err != nil {
		return fmt.Errorf("there is no group %s", group)
	}
	return nil
}

func freeBytes(path string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return int64(st.Bavail) * st.Bsize, err
}

// Mistakes returns what will refuse or defer mail, or is likely not meant, in
// order of place. It reads the texts of tables and the settings of databases,
// and asks no server. What the services find themselves when they read their settings
// (tables that cannot be opened, unknown restrictions, keys that cannot be read or do not belong
// to their certificate) is not among it.
func Mistakes(cfg *config.Config, services []config.Service, system System) []Mistake {
	c := &checker{cfg: cfg, services: services, system: system.filled(), transports: make(map[string]bool)}
	for i := range services {
		if services[i].Type != "inet" {
			c.transports[services[i].Name] = true
		}
	}
	c.collect()
	c.names()
	c.identity()
	c.networks()
	c.interfaces()
	c.relays()
	c.routes()
	c.accounts()
	c.suppression()
	c.unsubscribing()
	for _, v := range c.of("tenant_header", "campaign_header") {
		if v.text != "" {
			c.askingField(v, "X-Tenant")
		}
	}
	c.classes()
	c.actions()
	c.certificates()
	c.databases()
	c.signing()
	c.events()
	c.waits()
	c.commands()
	c.sockets()
	c.disk()
	c.stale()
	c.shaping()
	c.writable()
	slices.SortStableFunc(c.list, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(b2i(b.File != ""), b2i(a.File != "")), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return slices.CompactFunc(c.list, func(a, b Mistake) bool {
		return a.File == b.File && a.Line == b.Line && a.Line > 0 && what(a.Text) == what(b.Text) || a == b
	})
}

// what is a text without the parameter: one that has by default the value of another one has its
// mistakes too.
func what(text string) string {
	_, rest, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	return rest
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A value is what main.cf or an option in master.cf sets, expanded.
type value struct {
	name, text string
	file       string // "" for a default
	line       int
	title      string // "relayhost", or "service smtp/inet: -o relayhost"
}

// A checker looks for mistakes.
type checker struct {
	cfg        *config.Config
	services   []config.Service
	system     System
	transports map[string]bool // the names in master.cf by which mail can be delivered
	values     []value         // all that is set and has an effect, in order of name, then of service
	used       map[string]bool // transports that settings and tables name; filled by routes
	list       []Mistake
}

// collect fills values.
func (c *checker) collect() {
	for _, name := range c.cfg.Names() {
		text, err := c.cfg.Value(name)
		if err != nil || config.NoEffect(name) != "" {
			continue
		}
		_, file, line := c.cfg.IsSet(name)
		c.values = append(c.values, value{name, text, file, line, name})
	}
	for i := range c.services {
		s := &c.services[i]
		own, err := c.cfg.With(s.Overrides()...)
		if err != nil {
			continue // an error of the configuration, which check says
		}
		for _, o := range s.Overrides() {
			if text, err := own.Value(o.Name); err == nil && config.NoEffect(o.Name) == "" {
				c.values = append(c.values, value{o.Name, text, s.File, s.Line, "service " + s.Name + "/" + s.Type + ": -o " + o.Name})
			}
		}
	}
}

// of returns the values of a parameter: what is set, or else the default.
func (c *checker) of(names ...string) (list []value) {
	for _, name := range names {
		for _, v := range c.values {
			if v.name == name {
				list = append(list, v)
			}
		}
		if set, _, _ := c.cfg.IsSet(name); !set {
			if text, err := c.cfg.Value(name); err == nil && text != "" {
				source := c.cfg.Source(name)
				_, file, line := c.cfg.IsSet(source)
				list = append(list, value{name, text, file, line, name})
			}
		}
	}
	return list
}

// warn notes what is likely not meant; stop what defers or refuses mail.
func (c *checker) warn(v value, format string, args ...any) { c.say(v, false, format, args...) }
func (c *checker) stop(v value, format string, args ...any) { c.say(v, true, format, args...) }

func (c *checker) say(v value, stops bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if v.title != "" {
		text = v.title + ": " + text
	}
	c.list = append(c.list, Mistake{File: v.file, Line: v.line, Text: text, Stops: stops})
}

// names looks for $name that stands for nothing. Names that nothing reads are in the
// warnings of package config.
func (c *checker) names() {
	for _, r := range c.cfg.Undefined(c.services) {
		text := fmt.Sprintf("%s: $%s is not set anywhere, and stands for nothing", r.Setting, r.Name)
		if r.Meant != "" {
			text += "; did you mean $" + r.Meant + "?"
		}
		c.list = append(c.list, Mistake{File: r.File, Line: r.Line, Text: text})
	}
}

// disk is the file system of the queue, and that of the content of large messages.
func (c *checker) disk() {
	queue, content := c.cfg.String("queue_directory"), c.cfg.String("spool_content_directory")
	largest := c.cfg.Bytes("message_size_limit")
	if content != "" {
		c.diskOf(content, "large mail", largest)
		if inline := c.cfg.Bytes("spool_inline_limit"); largest == 0 || largest > inline {
			largest = inline
		}
	}
	free, err := c.system.Free(queue)
	if err != nil || !c.diskOf(queue, "mail", largest) {
		return // the check of the directories says so, or that has been said
	}
	if err := room(c.cfg, free); err != nil {
		_, file, line := c.cfg.IsSet("spool_segment_size")
		c.stop(value{file: file, line: line, title: "spool_segment_size"}, "%v", err)
	}
}

// diskOf says whether a directory's file system has the room without which smtpd takes no mail, or
// no large mail: what. The largest message that goes there is that large.
func (c *checker) diskOf(dir, what string, largest int64) bool {
	free, err := c.system.Free(dir)
	if err != nil {
		return true
	}
	say := func(parameter, format string, args ...any) {
		_, file, line := c.cfg.IsSet(parameter)
		c.stop(value{file: file, line: line, title: parameter}, "the file system of %s has %d bytes free, and %s is taken only while there are %s",
			dir, free, what, fmt.Sprintf(format, args...))
	}
	switch least := c.cfg.Bytes("queue_minfree"); {
	case least > 0 && free < least:
		say("queue_minfree", "%d: free some space, or lower it", least)
	case largest > 0 && free < largest+largest/2:
		say("message_size_limit", "1.5 times %d: free some space, or lower it", largest)
	default:
		return true
	}
	return false
}

// stale looks for tables whose text was changed and that were not built again.
func (c *checker) stale() {
	for _, v := range append(c.of("alias_maps"), c.values...) {
		for _, t := range built(v.name, v.text) {
			source, err := c.system.Stat(t.Source)
			index, err2 := c.system.Stat(t.Path)
			if err == nil && err2 == nil && source.ModTime().After(index.ModTime()) {
				c.warn(v, "%s is newer than %s, which the services read; run: %s %s", t.Source, t.Path, t.Builder, t.Spec)
			}
		}
	}
}

// writable looks for files that everybody can change, and with them what the mail
// system does, partly as root.
func (c *checker) writable() {
	seen := make(map[string]bool)
	look := func(v value, path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		info, err := c.system.Stat(path)
		if err != nil || info.Mode().Perm()&0o002 == 0 || info.Mode()&fs.ModeSticky != 0 || !info.Mode().IsRegular() && !info.IsDir() {
			return
		}
		c.warn(v, "every user can write to %s, and so change what the mail system does: chmod o-w %s", path, path)
	}
	for _, name := range []string{"", "/main.cf", "/master.cf"} {
		look(value{}, c.cfg.Dir()+name)
	}
	for _, v := range append(c.of("alias_maps", "alias_database"), c.values...) {
		for _, m := range namedFile().FindAllStringSubmatch(v.text, -1) {
			look(v, m[2])
			for _, t := range built(v.name, m[1]+":"+m[2]) {
				look(v, t.Path)
			}
			if i := strings.LastIndexByte(m[2], '/'); i > 0 {
				look(v, m[2][:i])
			}
		}
	}
}
