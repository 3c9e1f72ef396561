package maillog

import "strconv"

// MasterStarted says that the mail system runs.
type MasterStarted struct{ Version, ConfigDir string }

// Append implements Event.
func (e MasterStarted) Append(b []byte) []byte {
	return appendVersion(append(b, "daemon started"...), e.Version, e.ConfigDir)
}

// AppendFields implements Fielder.
func (e MasterStarted) AppendFields(b []byte) []byte {
	return appendVersionFields(appendEvent(b, "started"), e.Version, e.ConfigDir)
}

// MasterReloaded says that the configuration has been read again.
type MasterReloaded struct{ Version, ConfigDir string }

// Append implements Event.
func (e MasterReloaded) Append(b []byte) []byte {
	return appendVersion(append(b, "reload"...), e.Version, e.ConfigDir)
}

// AppendFields implements Fielder.
func (e MasterReloaded) AppendFields(b []byte) []byte {
	return appendVersionFields(appendEvent(b, "reloaded"), e.Version, e.ConfigDir)
}

func appendVersionFields(b []byte, version, dir string) []byte {
	return appendString(appendString(b, "version", version), "configuration", dir)
}

func appendVersion(b []byte, version, dir string) []byte {
	b = append(append(b, " -- version "...), version...)
	return append(append(b, ", configuration "...), dir...)
}

// MasterTerminating says that the mail system stops.
type MasterTerminating struct{ Signal int }

// Append implements Event.
func (e MasterTerminating) Append(b []byte) []byte {
	return strconv.AppendInt(append(b, "terminating on signal "...), int64(e.Signal), 10)
}

// AppendFields implements Fielder.
func (e MasterTerminating) AppendFields(b []byte) []byte {
	return appendNumber(appendEvent(b, "terminating"), "signal", int64(e.Signal))
}

// ProcessFailed says that a service process ended badly. It is logged with
// LogWarning.
type ProcessFailed struct {
	Path   string // of the program, as it is in daemon_directory
	PID    int
	Status int // exit status, unless
	Signal int // a signal killed it
}

// Append implements Event.
func (e ProcessFailed) Append(b []byte) []byte {
	b = append(append(b, "process "...), e.Path...)
	b = strconv.AppendInt(append(b, " pid "...), int64(e.PID), 10)
	if e.Signal != 0 {
		return strconv.AppendInt(append(b, " killed by signal "...), int64(e.Signal), 10)
	}
	return strconv.AppendInt(append(b, " exit status "...), int64(e.Status), 10)
}

// AppendFields implements Fielder.
func (e ProcessFailed) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "process failed"), "path", e.Path)
	b = appendNumber(b, "child_pid", int64(e.PID))
	if e.Signal != 0 {
		return appendNumber(b, "signal", int64(e.Signal))
	}
	return appendNumber(b, "exit_status", int64(e.Status))
}

// Throttling says that a service fails before it has done anything, and is
// not started again for a while, at most service_throttle_time. It is logged with LogWarning.
type Throttling struct{ Path string }

// Append implements Event.
func (e Throttling) Append(b []byte) []byte {
	return append(append(b, e.Path...), ": bad command startup -- throttling"...)
}

// AppendFields implements Fielder.
func (e Throttling) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "throttling"), "path", e.Path)
}

// ProcessLimit says that a service serves as many clients as it may. It is
// logged with LogWarning.
type ProcessLimit struct {
	Service  string // smtp
	Endpoint string // 25
	Limit    int
}

// Append implements Event.
func (e ProcessLimit) Append(b []byte) []byte {
	b = append(append(append(b, `service "`...), e.Service...), `" (`...)
	b = append(append(b, e.Endpoint...), `) has reached its process limit "`...)
	b = strconv.AppendInt(b, int64(e.Limit), 10)
	return append(b, `": new clients may experience noticeable delays`...)
}

// AppendFields implements Fielder.
func (e ProcessLimit) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "process limit"), "service", e.Service)
	return appendNumber(b, "process_limit", int64(e.Limit))
}
