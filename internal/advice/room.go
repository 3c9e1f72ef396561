package advice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"posthaste/internal/config"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
)

// Room says why the queue's file system has no room for a queue to begin with. A queue
// that is there already lives on the room that it has.
func Room(cfg *config.Config) error {
	free, err := freeBytes(queueDisk(cfg))
	if err != nil {
		return nil // the check of the directories says so
	}
	return room(cfg, free)
}

// Place says why cleanup would refuse to start for where mail is to be: the content of large messages, or one of
// several spools. Nobody would take mail then, and everybody would wait.
func Place(cfg *config.Config) error {
	return errors.Join(contentPlace(cfg), spoolPlaces(cfg))
}

func contentPlace(cfg *config.Config) error {
	err := spool.CheckPlace(nil, filepath.Join(cfg.String("queue_directory"), spool.Subdir), cfg.String("spool_content_directory"))
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if os.Geteuid() == 0 { // it is mail_owner who may not, as whom the spool is read
		return fmt.Errorf("%w: a file system is not mounted there, or mail_owner may not use it", err)
	}
	return nil // the check of the directories says so
}

// spoolPlaces says so of spool_directories: one that has mail is not there. Where this process may not look, and where
// there is nothing yet, nothing is said.
func spoolPlaces(cfg *config.Config) error {
	if cfg.String("spool_type") != "log" {
		return nil
	}
	plan, err := spools.Find(nil, filepath.Join(cfg.String("queue_directory"), spool.Subdir), cfg)
	if err == nil && plan.Several() {
		err = plan.Reach()
		plan.Close()
	}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 || errors.Is(err, fs.ErrNotExist) {
		return nil // the check of the directories says so
	}
	return err
}

// queueDisk is a directory on the file system that the queue is on.
func queueDisk(cfg *config.Config) string {
	queue := cfg.String("queue_directory")
	if dir := filepath.Join(queue, spool.Subdir); exists(dir) {
		return dir
	}
	return queue
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func room(cfg *config.Config, free int64) error {
	queue, segment := cfg.String("queue_directory"), cfg.Bytes("spool_segment_size")
	if there, _ := filepath.Glob(filepath.Join(queue, spool.Subdir, "seg", "*.seg")); len(there) > 0 || free >= segment {
		return nil
	}
	return fmt.Errorf("the file system of %s has %d bytes free, and a new queue begins with a segment of %d: free some space, "+
		"have queue_directory on a larger file system, or lower spool_segment_size", queue, free, segment)
}
