package service

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"posthaste/internal/statedir"
)

const (
	// profileTime is how long a CPU profile is taken.
	profileTime = 10 * time.Second
	// mutexShare is of how many waits for locks one is recorded, and blockTime of how much waiting one sample. With less
	// the profile of the processor would show what recording takes.
	mutexShare = 10
	blockTime  = 10 * time.Microsecond
)

// A profiler answers SIGUSR1 with what the process spends its time and memory
// on, for "go tool pprof": PROCESS-PID.cpu over the next ten seconds, and at
// the end of these PROCESS-PID.heap, .allocs and .goroutine, all in
// data_directory; and PROCESS-PID.mutex and .block: which locks were waited for
// in these ten seconds, and what goroutines waited for. Nothing of that is
// counted at other times.
type profiler struct {
	env  *Env
	busy sync.Mutex
	wg   sync.WaitGroup
	stop chan struct{}
}

func newProfiler(env *Env) *profiler { return &profiler{env: env, stop: make(chan struct{})} }

// start begins a profile, unless one is being taken.
func (p *profiler) start() {
	if !p.busy.TryLock() {
		return
	}
	p.wg.Go(func() {
		defer p.busy.Unlock()
		if err := p.take(); err != nil {
			p.env.Log.Warning("profile: %v", err)
		}
	})
}

// close ends a profile that is being taken, and waits until it is written.
func (p *profiler) close() {
	close(p.stop)
	p.wg.Wait()
}

func (p *profiler) take() error {
	data := p.env.Config.String("data_directory")
	dir, err := statedir.Open(data)
	if err != nil {
		return err
	}
	defer dir.Close()
	base := fmt.Sprintf("%s-%d", p.env.Process, os.Getpid())
	cpu, err := dir.OpenFile(base+".cpu", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer cpu.Close()
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return err
	}
	runtime.SetMutexProfileFraction(mutexShare)
	runtime.SetBlockProfileRate(int(blockTime))
	t := time.NewTimer(profileTime)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.stop:
	}
	pprof.StopCPUProfile()
	runtime.SetMutexProfileFraction(0)
	runtime.SetBlockProfileRate(0)
	runtime.GC() // the heap profile is as of the last collection
	for _, name := range []string{"mutex", "block", "allocs", "goroutine", "heap"} {
		if err := writeProfile(dir, base+"."+name, name); err != nil {
			return err
		}
	}
	p.env.Log.Info("profile written to %s.{cpu,heap,allocs,goroutine,mutex,block}", filepath.Join(data, base))
	return nil
}

func writeProfile(dir *statedir.Dir, file, name string) error {
	f, err := dir.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return pprof.Lookup(name).WriteTo(f, 0)
}
