package master

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/maillog"
)

// settleTime is how long a reloaded mail system may take to open its new log
// file, before the old one is compressed.
const settleTime = 2 * time.Second

// logRotate renames the log file, has the mail system open a new one, and
// compresses the old one.
func (c *control) logRotate() int {
	path := c.config.String("maillog_file")
	if path == "" || strings.HasPrefix(path, "/dev/") {
		return c.fatal("logrotate: maillog_file = %s: expected a file; syslog and standard output are rotated elsewhere", path)
	}
	if err := maillog.CheckFile(c.config); err != nil {
		return c.fatal("%v", err)
	}
	old := path + "." + strftime(c.config.String("maillog_file_rotate_suffix"), time.Now())
	if _, err := os.Lstat(old); !errors.Is(err, os.ErrNotExist) {
		return c.fatal("logrotate: %s exists already", old)
	}
	if err := os.Rename(path, old); err != nil {
		return c.fatal("logrotate: %v", err)
	}
	if pid := c.running(); pid != 0 {
		if status := c.kill(pid, syscall.SIGHUP); status != 0 {
			return status
		}
		time.Sleep(settleTime)
	}
	compressor := c.config.String("maillog_file_compressor")
	if compressor == "" {
		return 0
	}
	cmd := exec.Command(compressor, old)
	cmd.Stdout, cmd.Stderr = c.stdout, c.stderr
	if err := cmd.Run(); err != nil {
		return c.fatal("logrotate: %s %s: %v", compressor, old, err)
	}
	return 0
}

// strftime prints t as strftime(3) does, as far as file names need it.
func strftime(format string, t time.Time) string {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
		'j': "002", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'F': "2006-01-02", 'T': "15:04:05",
		'e': "_2", 'Z': "MST", 'z': "-0700",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout, ok := layouts[format[i]]; {
		case ok:
			b.WriteString(t.Format(layout))
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == 's':
			b.WriteString(strconv.FormatInt(t.Unix(), 10))
		default:
			b.WriteByte('%')
			b.WriteByte(format[i])
		}
	}
	return b.String()
}
