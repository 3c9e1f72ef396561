package simtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// localUsers have accounts with a maildir each. The first of them get mail themselves, the others as
// members of lists.
var localUsers = []string{"ann@local.test", "bob@local.test", "carl@local.test", "dora@local.test"}

// lists are the aliases, each with its members. Nobody is on two of them, or gets mail in another way as well.
var lists = map[string][]string{
	"staff@local.test": {"carl@local.test", "friend@one.test"},
	"all@local.test":   {"dora@local.test", "never@two.test", "friend@three.test"},
}

// maildir is what the books have as the next hop of what is in one.
const maildir = "maildir"

// members are those who are to get the mail for a recipient.
func members(rcpt string) []string {
	if m := lists[rcpt]; m != nil {
		return m
	}
	return []string{rcpt}
}

// listOf is the list that has brought a member its mail; empty: none.
func listOf(member string) string {
	for name, m := range lists {
		if slices.Contains(m, member) {
			return name
		}
	}
	return ""
}

// accounts writes the files that say who has one, and the aliases. All accounts are this process's
// own, so that it need not change its rights.
func (w *World) accounts() error {
	passwd := "nobody:x:65534:65534::/:/\npostfix:x:65533:65533::/:/\n"
	for _, u := range localUsers {
		name, _, _ := strings.Cut(u, "@")
		passwd += fmt.Sprintf("%s:x:%d:%d::%s:/\n", name, os.Geteuid(), os.Getegid(), filepath.Join(w.dir, "mail", name))
	}
	aliases := ""
	for name, m := range lists {
		name, _, _ = strings.Cut(name, "@")
		aliases += name + " " + strings.Join(m, ", ") + "\n"
	}
	for name, text := range map[string]string{"passwd": passwd, "group": "", "aliases": aliases} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// A mailroom has the maildirs, which are real directories, and knows what of them is on stable storage.
type mailroom struct {
	site *site
	dir  string
	rnd  map[string]*rand.Rand // of each user

	mu     sync.Mutex
	filed  map[string]*paper // by path
	synced map[uint64]bool   // files whose content is, by inode number
}

// A paper is a message in a maildir.
type paper struct {
	at    time.Time
	named bool // its name is on stable storage
}

// emptyMailroom makes the maildirs anew.
func emptyMailroom(s *site, dir string) (*mailroom, error) {
	m := &mailroom{site: s, dir: filepath.Join(dir, "mail"), rnd: map[string]*rand.Rand{}, filed: map[string]*paper{}, synced: map[uint64]bool{}}
	if err := os.RemoveAll(m.dir); err != nil {
		return nil, err
	}
	for _, u := range localUsers {
		name, _, _ := strings.Cut(u, "@")
		m.rnd[name] = s.seed.source("mailbox " + name)
		for _, sub := range []string{"new", "tmp", "cur"} {
			if err := os.MkdirAll(filepath.Join(m.dir, name, "Maildir", sub), 0o700); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// Change is where faults strike a delivery to a maildir.
func (w world) Change(op, path string) error {
	if err := w.p.step(op + " " + path); err != nil {
		return err
	}
	m := w.p.site.mail
	switch op {
	case "sync":
		time.Sleep(w.p.syncTime())
		if w.p.dead() {
			return errKilled
		}
		if w.p.site.syncsFail() {
			return syscall.EIO
		}
		return m.sync(path)
	case "remove":
		w.p.site.drop.remove(path)
	case "rename":
		m.mu.Lock()
		defer m.mu.Unlock()
		m.filed[path] = &paper{at: w.p.site.since()}
	}
	return nil
}

func (w world) Accounts() string { return filepath.Dir(w.p.site.mail.dir) }

// sync notes what a sync of a file or directory has made durable, or fails as the plan has it.
func (m *mailroom) sync(path string) error {
	if filepath.Base(path) == "new" {
		m.mu.Lock()
		defer m.mu.Unlock()
		for file, p := range m.filed {
			p.named = p.named || filepath.Dir(file) == path
		}
		return nil
	}
	rel, err := filepath.Rel(m.dir, path)
	if err != nil {
		return err
	}
	user, _, _ := strings.Cut(rel, "/")
	if err := m.full(user); err != nil {
		return err
	}
	if n := inode(path); n != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.synced[n] = true
	}
	return nil
}

// full is an error when a mailbox has no room now: for good with EDQUOT, for now with ENOSPC.
func (m *mailroom) full(user string) error {
	p := m.site.plan.boxes[user]
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.site.isHealed() || m.rnd[user].Float64() >= p.trouble {
		return nil
	}
	return p.err
}

// A box is how a mailbox misbehaves.
type box struct {
	trouble float64 // the share of deliveries
	err     error
}

func inode(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// cut is what a power cut leaves: a name that was not synced may be gone, a file that was not is torn.
func (m *mailroom) cut(r *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var unsure []string
	for path, p := range m.filed {
		if !p.named || !m.synced[inode(path)] {
			unsure = append(unsure, path)
		}
	}
	slices.Sort(unsure)
	for _, path := range unsure {
		if !m.synced[inode(path)] {
			_ = os.Truncate(path, 100)
		}
		if p := m.filed[path]; !p.named && r.IntN(2) == 0 {
			_ = os.Remove(path)
			delete(m.filed, path)
		} else {
			p.named = true
		}
	}
}

// delivered adds what is in the maildirs to the books.
func (m *mailroom) delivered() {
	for _, u := range localUsers {
		name, _, _ := strings.Cut(u, "@")
		dir := filepath.Join(m.dir, name, "Maildir", "new")
		list, err := os.ReadDir(dir)
		if err != nil {
			m.site.books.fail("%v", err)
		}
		for _, e := range list {
			path := filepath.Join(dir, e.Name())
			b, err := os.ReadFile(path)
			p := m.filed[path]
			if err != nil || p == nil {
				m.site.books.fail("%s: %v, and the log of changes has %v", path, err, p)
				continue
			}
			m.file(u, p.at, string(b))
		}
	}
	slices.SortStableFunc(m.site.books.deliveries, func(a, b *delivery) int { return a.at.Compare(b.at) })
}

// file reads one message, which must begin with the fields that local adds.
func (m *mailroom) file(user string, at time.Time, text string) {
	to := listOf(user)
	if to == "" {
		to = user
	}
	from, rest, _ := strings.Cut(strings.TrimPrefix(text, "Return-Path: <"), ">\n")
	want := fmt.Sprintf("X-Original-To: %s\nDelivered-To: %s\n", to, to) // frozen_delivered_to is set
	if !strings.HasPrefix(rest, want) || strings.Count(rest, "Delivered-To: ") != 1 {
		m.site.books.fail("in the maildir of %s something does not begin with\n%s:\n%s", user, want, text)
	}
	m.site.books.arrived(&delivery{at: at, hop: maildir, from: from, rcpts: []string{user}, content: strings.ReplaceAll(rest, "\n", "\r\n")})
}
