// Package rights lets a delivery use the rights of the one it is made for.
//
// File access goes by [Rights.Do]: the calling goroutine's work is done on
// an operating system thread whose file system user, group and supplementary
// groups are the recipient's. On Linux these belong to a thread, and giving
// up the file system user root takes the thread's file capabilities
// (CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_FOWNER and their kin) with it, so that
// opening, creating, linking and removing succeed exactly where the
// recipient's own process would succeed. All other capabilities are set aside too,
// but for those of coming back: with CAP_SYS_RESOURCE what is written would
// count against the recipient's quota, and never be refused for it, nor for
// the blocks that a file system keeps for root.
//
// A helper process for each delivery would give the same and cost a fork, an
// exec and the passing of content, some hundred times as much; the thread
// costs some fifteen short system calls. What a thread cannot be is somebody else
// for signals and tracing, and it shares our memory: code of the recipient's
// choosing never runs there. Commands therefore get a process of their own,
// which gives up everything before it starts (package command).
//
// The thread gets its own rights back before anything else is done on it.
//
// # Security
//
// Root is refused: neither user 0 nor group 0, as primary or supplementary
// group, is ever delivered as, but for what is done with [Own].
//
// When the process itself is not root nothing is switched: everything is done
// with the rights that it has.
package rights

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Rights are those of a user for the length of a delivery.
type Rights struct {
	UID, GID int
	Groups   []int // supplementary groups; those of the process are never kept

	own bool
}

// Own are the rights of this process: for the mailbox and the .forward file of
// root, who are nobody else's to write. No command gets them.
var Own = Rights{own: true}

// IsOwn says whether r is Own.
func (r Rights) IsOwn() bool { return r.own }

// Switching says whether this process can deliver with others' rights.
func Switching() bool { return os.Geteuid() == 0 }

// Check refuses root's rights.
func (r Rights) Check() error {
	if r.UID <= 0 || r.GID <= 0 || slices.Contains(r.Groups, 0) {
		return fmt.Errorf("refusing to deliver with the rights of uid %d, gid %d, groups %d", r.UID, r.GID, r.Groups)
	}
	return nil
}

// Do calls f with the rights r for access to files, and returns f's error, or
// its own when they could not be had: f has then not been called. f must do
// all its work on the goroutine it is called on. Do may be called concurrently.
//
// It stays on the calling goroutine: a delivery waits for the disk several times, and
// one goroutine more is as many times another to be woken. A tenth of the time of a
// Maildir delivery was that.
func (r Rights) Do(f func() error) error {
	if r.own || !Switching() {
		return f()
	}
	if err := r.Check(); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := own()
	if err == nil {
		defer before.restore()
		err = r.assume(before)
	}
	if err != nil {
		return fmt.Errorf("take the rights of uid %d, gid %d: %w", r.UID, r.GID, err)
	}
	return f()
}

// mine are the rights of a thread that is to come back to them.
type mine struct {
	fsuid, fsgid int
	groups       []int
	caps         [2]unix.CapUserData // the lower and the upper 32
}

// header says which form of capabilities, and that they are the calling thread's.
func header() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

func own() (m mine, err error) {
	m.fsuid, _ = unix.SetfsuidRetUid(-1) // changes nothing and tells
	m.fsgid, _ = unix.SetfsgidRetGid(-1)
	if m.groups, err = unix.Getgroups(); err != nil {
		return m, fmt.Errorf("getgroups: %w", err)
	}
	if err = unix.Capget(header(), &m.caps[0]); err != nil {
		return m, fmt.Errorf("capget: %w", err)
	}
	return m, nil
}

// assume sets the calling thread's file system ids and groups to r's. The thread is
// locked to its goroutine. The user comes after the groups, which cannot be set
// without root's capabilities in every container.
func (r Rights) assume(m mine) error {
	if err := setGroups(r.GID, r.Groups); err != nil {
		return err
	}
	if err := setFSUID(r.UID); err != nil {
		return err
	}
	m.caps[0].Effective &= 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	m.caps[1].Effective = 0
	return setCaps(m.caps)
}

// restore is the way back. With the capabilities that take leaves, only memory can
// be missing for it. Nothing may go on with somebody else's rights, so it is tried
// until there is some.
func (m mine) restore() {
	for m.tryRestore() != nil {
		time.Sleep(restoreDelay)
	}
}

const restoreDelay = 100 * time.Millisecond

func (m mine) tryRestore() error {
	if err := setFSUID(m.fsuid); err != nil {
		return err
	}
	if err := setGroups(m.fsgid, m.groups); err != nil {
		return err
	}
	return setCaps(m.caps)
}

func setCaps(caps [2]unix.CapUserData) error {
	if err := unix.Capset(header(), &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

func setGroups(gid int, groups []int) error {
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	unix.SetfsgidRetGid(gid)
	if got, _ := unix.SetfsgidRetGid(-1); got != gid {
		return fmt.Errorf("setfsgid: the file system group is %d, not %d", got, gid)
	}
	return nil
}

func setFSUID(uid int) error {
	unix.SetfsuidRetUid(uid)
	if got, _ := unix.SetfsuidRetUid(-1); got != uid {
		return fmt.Errorf("setfsuid: the file system user is %d, not %d", got, uid)
	}
	return nil
}
