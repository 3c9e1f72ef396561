package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Permitted says whether the caller of this program may have it read the
// configuration in dir. Who lends the program a right of his own may choose
// freely, and so may the super-user; who has a right lent by the program (it is
// set-gid) may not have it look at files of his choice: dir must be
// DefaultDir, or one that main.cf there names in alternate_config_directories or
// multi_instance_directories.
func Permitted(dir string) error {
	if os.Getgid() == os.Getegid() && os.Getuid() == os.Geteuid() || os.Getuid() == 0 {
		return nil
	}
	return permitted(dir, DefaultDir)
}

func permitted(dir, standard string) error {
	dir = filepath.Clean(dir)
	if dir == standard {
		return nil
	}
	std, err := Read(standard)
	if err == nil {
		err = std.Check("alternate_config_directories", "multi_instance_directories")
	}
	if err != nil {
		return err
	}
	if slices.Contains(std.List("alternate_config_directories"), dir) || slices.Contains(std.List("multi_instance_directories"), dir) {
		return nil
	}
	return fmt.Errorf("%s: not a permitted configuration directory: list it in alternate_config_directories in %s/main.cf", dir, standard)
}
