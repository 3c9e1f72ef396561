package postmulti

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"posthaste/internal/spool"
)

// wrapper is the multi_instance_wrapper that -e init sets.
const wrapper = "${command_directory}/postmulti -p --"

// edit carries out -e.
func (c *command) edit() error {
	switch c.action {
	case "init":
		return c.set(c.all[0].dir, "multi_instance_wrapper="+wrapper, "multi_instance_enable=yes")
	case "create", "import":
		return c.add()
	}
	i, err := c.target()
	if err != nil {
		return err
	}
	switch c.action {
	case "enable":
		return c.set(i.dir, "multi_instance_enable=yes")
	case "disable":
		return c.set(i.dir, "multi_instance_enable=no")
	case "assign":
		return c.assign(i)
	case "deport":
		return c.setList(slices.DeleteFunc(c.others(), func(dir string) bool { return dir == i.dir }))
	}
	return c.destroy(i)
}

// target is the instance that -i names.
func (c *command) target() (*instance, error) {
	if c.name == "" {
		return nil, fmt.Errorf("-e %s: name the instance with -i", c.action)
	}
	for n, i := range c.all {
		if !i.is(c.name, n == 0) {
			continue
		}
		if n == 0 && (c.action == "deport" || c.action == "destroy") {
			return nil, fmt.Errorf("-e %s: not the primary instance", c.action)
		}
		return i, nil
	}
	return nil, fmt.Errorf("no instance is named %s", c.name)
}

// set changes an instance's main.cf.
func (c *command) set(dir string, settings ...string) error {
	var complaint bytes.Buffer
	if c.Postconf(append([]string{"-c", dir, "-e"}, settings...), io.Discard, &complaint) != 0 {
		return fmt.Errorf("change %s/main.cf: %s", dir, strings.TrimSpace(complaint.String()))
	}
	return nil
}

// others are the configuration directories of the other instances.
func (c *command) others() []string {
	return slices.Clone(c.all[0].cfg.List("multi_instance_directories"))
}

func (c *command) setList(dirs []string) error {
	return c.set(c.all[0].dir, "multi_instance_directories="+strings.Join(dirs, " "))
}

// assign gives an instance a name and a group.
func (c *command) assign(i *instance) error {
	settings := c.identity()
	if len(settings) == 0 {
		return errors.New("-e assign: give a name with -I, or a group with -G")
	}
	if err := c.free(i); err != nil {
		return err
	}
	return c.set(i.dir, settings...)
}

// identity is what -I and -G set.
func (c *command) identity() (settings []string) {
	if c.newName != nil {
		settings = append(settings, "multi_instance_name="+*c.newName)
	}
	if c.newGroup != nil {
		settings = append(settings, "multi_instance_group="+*c.newGroup)
	}
	return settings
}

// free says whether no instance but i has the name of -I.
func (c *command) free(i *instance) error {
	for _, other := range c.all {
		if other != i && c.newName != nil && *c.newName != "" && other.name == *c.newName {
			return fmt.Errorf("-I %s: that is the name of the instance in %s", *c.newName, other.dir)
		}
	}
	return nil
}

// add makes an instance, or takes in one that exists.
func (c *command) add() error {
	if err := c.free(nil); err != nil {
		return err
	}
	places, err := c.places()
	if err != nil {
		return err
	}
	dir := places["config_directory"]
	exists, err := isInstance(dir)
	if err != nil {
		return err
	}
	settings := c.identity()
	switch {
	case exists:
		old, err := load(dir)
		if err != nil {
			return err
		}
		if err := c.apart(old.cfg.String("queue_directory"), old.cfg.String("data_directory"), dir); err != nil {
			return err
		}
	case c.action == "import":
		return fmt.Errorf("%s: no main.cf and master.cf there", dir)
	default:
		if err := c.apart(places["queue_directory"], places["data_directory"], dir); err != nil {
			return err
		}
		if err := c.make(dir); err != nil {
			return err
		}
		// As in Postfix a new instance neither listens nor takes mail of
		// users, until its settings are right.
		settings = append(settings, "queue_directory="+places["queue_directory"], "data_directory="+places["data_directory"],
			"multi_instance_enable=no", "master_service_disable=inet", "authorized_submit_users=")
		for _, name := range []string{"command_directory", "mail_owner", "setgid_group", "compatibility_level"} {
			settings = append(settings, name+"="+c.all[0].cfg.String(name))
		}
	}
	if len(settings) > 0 {
		if err := c.set(dir, settings...); err != nil {
			return err
		}
	}
	return c.setList(c.insert(dir))
}

// places are the directories of a new instance: arguments, or those of the
// primary one with the last part replaced by the name of -I.
func (c *command) places() (map[string]string, error) {
	names := []string{"config_directory", "queue_directory", "data_directory"}
	primary := c.all[0]
	places := map[string]string{}
	for _, w := range c.words {
		name, value, ok := strings.Cut(w, "=")
		if name, value = strings.TrimSpace(name), strings.TrimSpace(value); !ok || !slices.Contains(names, name) || !filepath.IsAbs(value) {
			return nil, fmt.Errorf("%s: expected one of %s, with an absolute path", w, strings.Join(names, "=, ")+"=")
		}
		places[name] = filepath.Clean(value)
	}
	for _, name := range names {
		if places[name] != "" {
			continue
		}
		if c.newName == nil || *c.newName == "" {
			if c.action == "import" && name != "config_directory" {
				continue // it has its own
			}
			return nil, fmt.Errorf("-e %s: give a name with -I, or %s=path", c.action, name)
		}
		like := primary.dir
		if name != "config_directory" {
			like = primary.cfg.String(name)
		}
		places[name] = filepath.Join(filepath.Dir(like), *c.newName)
	}
	return places, nil
}

// apart says whether no instance has one of the directories.
func (c *command) apart(queue, data, dir string) error {
	if queue == dir || data == dir || queue == data {
		return fmt.Errorf("an instance needs three directories: config_directory %s, queue_directory %s, data_directory %s", dir, queue, data)
	}
	for _, i := range c.all {
		for _, taken := range []struct{ what, theirs, ours string }{{"config_directory", i.dir, dir},
			{"queue_directory", filepath.Clean(i.cfg.String("queue_directory")), filepath.Clean(queue)},
			{"data_directory", filepath.Clean(i.cfg.String("data_directory")), filepath.Clean(data)}} {
			if taken.theirs == taken.ours {
				return fmt.Errorf("%s %s is that of the instance in %s", taken.what, taken.ours, i.dir)
			}
		}
	}
	return nil
}

// isInstance says whether there are a main.cf and a master.cf. One without the
// other is an error.
func isInstance(dir string) (bool, error) {
	var found []string
	for _, name := range []string{"main.cf", "master.cf"} {
		switch _, err := os.Stat(filepath.Join(dir, name)); {
		case err == nil:
			found = append(found, name)
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		}
	}
	if len(found) == 1 {
		return false, fmt.Errorf("%s has a %s only: remove it, or complete the instance", dir, found[0])
	}
	return len(found) == 2, nil
}

// make writes a new instance's files.
func (c *command) make(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"main.cf": c.Main, "master.cf": c.Master} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// insert puts a directory into the list: at the end, at the front with -a,
// before the instance of -i, or before the first of the group of -g.
func (c *command) insert(dir string) []string {
	dirs := c.others()
	at := len(dirs)
	for n, i := range c.all[1:] {
		if c.front || c.name != "" && i.is(c.name, false) || c.name == "" && c.group != "" && i.group == c.group {
			at = n
			break
		}
	}
	return slices.Insert(dirs, min(at, len(dirs)), dir)
}

// Files and directories that the mail system makes, which destroy removes; the
// former may be patterns. Others stay, and so do the directories they are in.
var (
	madeInQueue = []string{"pid", "private", "public", "spool", "tmp"}
	madeForJail = []string{"etc/resolv.conf", "etc/hosts", "etc/host.conf", "etc/nsswitch.conf", "etc/services", "etc/localtime"}
	madeInData  = []string{"tlsrpt", "mta-sts*", "postscreen_cache*", "verify_cache*", "verify", "overrides", "qmgr", "pickup", "master.lock"}
)

// destroy removes an instance that is disabled and stopped, and has no mail.
func (c *command) destroy(i *instance) error {
	if i.enabled {
		return fmt.Errorf("instance %s is enabled: disable it first", i.dir)
	}
	if c.posthaste(i, "status").Run() == nil {
		return fmt.Errorf("instance %s is running: stop it first", i.dir)
	}
	queue, data := i.cfg.String("queue_directory"), i.cfg.String("data_directory")
	if err := c.apartFrom(i, queue, data); err != nil {
		return err
	}
	if err := c.empty(i, queue); err != nil {
		return err
	}
	if err := c.setList(slices.DeleteFunc(c.others(), func(dir string) bool { return dir == i.dir })); err != nil {
		return err
	}
	var errs []error
	places := []string{filepath.Join(queue, "maildrop"), filepath.Join(queue, "etc"), queue, data, i.dir}
	if content := i.cfg.String("spool_content_directory"); content != "" && ownContent(queue, content) {
		names, err := filepath.Glob(filepath.Join(content, "*.spent"))
		errs = append(errs, err)
		for _, name := range append(names, filepath.Join(content, "IDENTITY")) {
			errs = append(errs, gone(os.Remove(name)))
		}
		places = append([]string{content}, places...)
	}
	for _, name := range madeInQueue {
		errs = append(errs, os.RemoveAll(filepath.Join(queue, name)))
	}
	for _, pattern := range madeInData {
		names, err := filepath.Glob(filepath.Join(data, pattern))
		errs = append(errs, err)
		for _, name := range names {
			errs = append(errs, os.RemoveAll(name))
		}
	}
	for _, name := range madeForJail {
		errs = append(errs, gone(os.Remove(filepath.Join(queue, name))))
	}
	for _, name := range []string{"main.cf", "master.cf"} {
		errs = append(errs, os.Remove(filepath.Join(i.dir, name)))
	}
	for _, dir := range places {
		if err := gone(os.Remove(dir)); err != nil {
			fmt.Fprintf(c.Stderr, "postmulti: warning: %v: it stays\n", err)
		}
	}
	return errors.Join(errs...)
}

// gone is err, unless it says that there was nothing to remove.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// apartFrom says whether no other instance lives in the directories of i.
func (c *command) apartFrom(i *instance, queue, data string) error {
	others := &command{}
	for _, other := range c.all {
		if other != i {
			others.all = append(others.all, other)
		}
	}
	return others.apart(queue, data, i.dir)
}

// ownContent says whether a directory has the content of large messages of that queue.
func ownContent(queue, dir string) bool {
	place, err := spool.ContentDir(nil, filepath.Join(queue, spool.Subdir))
	return err == nil && place == filepath.Clean(dir) && spool.CheckPlace(nil, filepath.Join(queue, spool.Subdir), dir) == nil
}

// empty says whether there is no mail, in the queue and in maildrop.
func (c *command) empty(i *instance, queue string) error {
	dropped, err := os.ReadDir(filepath.Join(queue, "maildrop"))
	if gone(err) != nil {
		return err
	}
	if len(dropped) > 0 {
		return fmt.Errorf("instance %s: there is mail in %s", i.dir, filepath.Join(queue, "maildrop"))
	}
	if _, err := os.Stat(filepath.Join(queue, "spool")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	cmd := c.posthaste(i, "spool", "dump", "-m")
	cmd.Stderr = c.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("instance %s: its queue cannot be looked at: %w", i.dir, err)
	}
	if len(bytes.TrimSpace(out)) > 0 {
		return fmt.Errorf("instance %s: there is mail in its queue", i.dir)
	}
	return nil
}
