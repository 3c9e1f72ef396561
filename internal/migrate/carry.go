package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"posthaste/internal/advice"
	"posthaste/internal/config"
	"posthaste/internal/service"
	"posthaste/internal/table/postmap"
)

func mapKeys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// kept is at the end of the name of a file that had to make way.
const kept = ".before-migrate"

// run carries the plan out, or says what it would do, and reports.
func (p *plan) run(out io.Writer) error {
	stage := p.to
	if p.dry {
		var err error
		if stage, err = os.MkdirTemp("", "migrate"); err != nil {
			return err
		}
		defer os.RemoveAll(stage)
	} else if err := os.MkdirAll(p.to, 0o755); err != nil {
		return err
	}
	files, err := p.files()
	if err != nil {
		return err
	}
	if !p.dry {
		for _, path := range files {
			if err := p.copy(path); err != nil {
				return err
			}
		}
	}
	for name, text := range map[string]string{"main.cf": p.main, "master.cf": p.master} {
		if err := place(filepath.Join(stage, name), strings.NewReader(text), 0o644); err != nil {
			return err
		}
	}
	r := &report{out: out, dry: p.dry}
	fmt.Fprintf(out, "%s to %s\n", p.from, p.to)
	r.section("Changed", "Would change", p.changed)
	r.section("Copied", "Would copy", files)
	differences, err := p.result(r, stage)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			p.ask("%s", strings.TrimSpace(line))
		}
	}
	short := func(list []string) []string {
		for i, l := range list {
			list[i] = strings.TrimPrefix(l, stage+"/")
		}
		return list
	}
	r.section("Different here", "Different here", short(differences))
	r.section("To decide", "To decide", short(p.decisions))
	r.section("Next", "Next", p.next())
	return nil
}

// result builds the tables of the new configuration, and says what is
// different with it.
func (p *plan) result(r *report, dir string) ([]string, error) {
	cfg, services, err := p.load(dir)
	if err != nil {
		return nil, err
	}
	p.tables(r, cfg, services)
	list := append(cfg.Warnings(), advice.Behavior(cfg, services)...)
	list = slices.DeleteFunc(list, func(l string) bool { // that places are others is no news
		name, _, found := strings.Cut(l, " is not set, and is ")
		return found && leftOut[name] != ""
	})
	for i := range services {
		list = append(list, services[i].Warnings(cfg)...)
	}
	notes, err := p.Notes(cfg, services)
	return append(list, notes...), err
}

// load reads the new configuration where it lies.
func (p *plan) load(dir string) (*config.Config, []config.Service, error) {
	cfg, err := config.Load(dir)
	if err != nil {
		return nil, nil, err
	}
	services, faulty, err := config.LoadMaster(dir, cfg)
	if err == nil {
		err = config.JoinLineErrors(faulty)
	}
	return cfg, services, err
}

// files are the files that settings name below the old directory.
func (p *plan) files() (list []string, err error) {
	for _, path := range slices.Sorted(mapKeys(p.copies)) {
		if !p.copies[path] {
			continue
		}
		var found []string
		err := filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() || err == nil && d.Type()&fs.ModeSymlink != 0 {
				found = append(found, name)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if len(found) == 0 {
			p.ask("%s is named, and is not there", path)
		}
		list = append(list, found...)
	}
	slices.Sort(list)
	list = slices.Compact(list)
	for _, path := range list {
		p.mentions(path)
	}
	return list, nil
}

// mentions looks for names of Postfix's directories in a file that is
// copied as it is.
func (p *plan) mentions(path string) {
	eachLine(path, func(n int, text string) {
		body := strings.TrimSpace(text)
		if strings.HasPrefix(body, "#") || strings.IndexByte(body, 0) >= 0 {
			return
		}
		for _, dir := range []string{p.from, p.old.queue} {
			if strings.Contains(body, dir+"/") {
				p.ask("%s:%d: names a path below %s, and is copied as it is", path, n, dir)
			}
		}
	})
}

// copy copies a file to the same place below the new directory, with owner
// and mode.
func (p *plan) copy(path string) error {
	to := filepath.Join(p.to, strings.TrimPrefix(path, p.from))
	for dir := filepath.Dir(to); dir != p.to; dir = filepath.Dir(dir) {
		old, err := os.Stat(filepath.Join(p.from, strings.TrimPrefix(dir, p.to)))
		if err == nil {
			err = os.MkdirAll(dir, old.Mode().Perm())
		}
		if err == nil {
			err = p.own(dir, old)
		}
		if err != nil {
			return err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := place(to, f, info.Mode().Perm()); err != nil {
		return err
	}
	if err := p.own(to, info); err != nil {
		return err
	}
	// An index that is as new as its text would seem to be older.
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// own gives a copy the owner and group of the original, or ours for Postfix's.
func (p *plan) own(path string, original fs.FileInfo) error {
	st, ok := original.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	uid, gid := int(st.Uid), int(st.Gid)
	ours, err := service.LookupAccount("posthaste")
	theirs, err2 := user.Lookup(p.old.owner)
	if err == nil && err2 == nil {
		if strconv.Itoa(uid) == theirs.Uid {
			uid = ours.UID
		}
		if strconv.Itoa(gid) == theirs.Gid {
			gid = ours.GID
		}
	}
	return os.Lchown(path, uid, gid)
}

// place writes a file in one step. One that is there and is not the same is
// kept.
func place(path string, r io.Reader, mode fs.FileMode) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil {
		if bytes.Equal(old, text) {
			return nil
		}
		if err := keep(path); err != nil {
			return err
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".migrate")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// keep gives a file another name besides its own.
func keep(path string) error {
	name := path + kept
	for n := 2; ; n++ {
		err := os.Link(path, name)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		name = fmt.Sprintf("%s%s.%d", path, kept, n)
	}
}

// tables builds the indexed tables that the settings name.
func (p *plan) tables(r *report, cfg *config.Config, services []config.Service) {
	var built []string
	for _, t := range advice.Tables(cfg, services) {
		source := t.Source
		if p.dry { // it has not been copied
			if rest, ok := strings.CutPrefix(source, p.to+"/"); ok {
				source = filepath.Join(p.from, rest)
			}
		}
		if _, err := os.Stat(source); err != nil {
			if strings.HasPrefix(t.Spec, "cdb:") {
				continue // Postfix's own file is read
			}
			theirs := strings.Replace(t.Source, p.to+"/", p.from+"/", 1)
			p.ask("%s: the text it is built from, %s, is not there; if Postfix's index is, Postfix's postmap makes a text of it: postmap -s %s > %s; then migrate again",
				t.Spec, t.Source, p.theirSpec(t), theirs)
			continue
		}
		built = append(built, t.Builder+" "+t.Spec)
		if p.dry {
			continue
		}
		var said bytes.Buffer
		if status := postmap.Run(t.Builder, nil, []string{"-c", p.to, t.Spec}, strings.NewReader(""), &said, &said); status != 0 {
			p.ask("%s %s failed: %s", t.Builder, t.Spec, strings.TrimSpace(said.String()))
		}
	}
	r.section("Built", "Would build", built)
}

// theirSpec is a table's name before.
func (p *plan) theirSpec(t advice.Table) string {
	return strings.Replace(t.Spec, p.to+"/", p.from+"/", 1)
}

// next are the steps that are left.
func (p *plan) next() []string {
	if p.dry {
		return []string{"the same without --dry-run"}
	}
	flags := ""
	if p.from != postfixDir {
		flags += " --from " + p.from
	}
	dir := ""
	if p.to != config.DefaultDir {
		flags += " --to " + p.to
		dir = "-c " + p.to + " "
	}
	stop, start := "postfix stop", "posthaste "+dir+"start"
	if unit := p.unit(); unit != "" {
		stop, start = "systemctl disable --now postfix", "systemctl enable "+unit+" && systemctl restart "+unit
	}
	steps := []string{"posthaste " + dir + "check"}
	// Otherwise its package has gone, and what has its name may be our link.
	if info, err := os.Lstat(filepath.Join(p.old.commands, "postfix")); err == nil && info.Mode().IsRegular() {
		steps = append(steps, "stop Postfix: "+stop)
	}
	if who, ok := p.listener(netip.AddrPortFrom(netip.IPv4Unspecified(), smtpPort)); ok && !strings.Contains(who.Path, "/postfix/") {
		steps = append(steps, fmt.Sprintf("stop %s: it listens on port %d", who, smtpPort))
	}
	steps = append(steps, "start Posthaste: "+start)
	switch n := waiting(p.old.queue); n {
	case 0:
	case 1:
		steps = append(steps, fmt.Sprintf("posthaste migrate%s --queue: moves the message that waits in %s", flags, p.old.queue))
	default:
		steps = append(steps, fmt.Sprintf("posthaste migrate%s --queue: moves the %d messages that wait in %s", flags, n, p.old.queue))
	}
	return steps
}

// smtpPort is where mail comes in.
const smtpPort = 25

// unit is the unit of systemd for the new configuration; "" where there is none.
func (p *plan) unit() string {
	if _, err := os.Stat(p.systemd); err != nil {
		return ""
	}
	if p.to == config.DefaultDir {
		return "posthaste"
	}
	if name, ok := strings.CutPrefix(p.to, config.DefaultDir+"-"); ok {
		return "posthaste@" + name
	}
	return ""
}

// waiting counts the messages in a queue of Postfix's.
func waiting(dir string) (n int) {
	for _, queue := range []string{"incoming", "active", "deferred", "hold"} {
		_ = filepath.WalkDir(filepath.Join(dir, queue), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				n++
			}
			return nil
		})
	}
	return n
}

// A report is what the command prints.
type report struct {
	out io.Writer
	dry bool
}

func (r *report) section(title, dryTitle string, lines []string) {
	if len(lines) == 0 {
		return
	}
	if r.dry {
		title = dryTitle
	}
	fmt.Fprintf(r.out, "\n%s:\n", title)
	for _, l := range lines {
		fmt.Fprintf(r.out, "  %s\n", l)
	}
}
