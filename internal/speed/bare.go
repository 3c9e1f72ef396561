package main

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"sync"
)

// bareSenders are the connections on which what was stored goes on, as many as the workload has sessions.
const bareSenders = 10

// A file of the bare program is done with when it has so many octets.
const bareFile = 64 << 20

// runBare is the limit of disk and loopback: it takes mail on addr, writes it to a file in the working directory,
// acknowledges what a sync has brought to the disk, and sends it on to next. All messages that wait share the sync. It
// looks at nothing, remembers nothing and logs nothing.
func runBare(ctx context.Context, addr, next string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	b := &bare{stores: make(chan store), sends: make(chan *[]byte, 1000), failed: make(chan error, bareSenders+1), sync: (*os.File).Sync}
	s := sinkOn(l)
	s.ask(&inquiry{take: b.take})
	var writer, senders sync.WaitGroup
	writer.Go(func() { b.failed <- b.write() })
	for range bareSenders {
		senders.Go(func() { b.failed <- b.send(next) })
	}
	select {
	case <-ctx.Done():
	case err = <-b.failed:
		return err // and with it all that others wait for
	}
	s.close() // no session takes anything more
	close(b.stores)
	close(b.sends)
	writer.Wait()
	senders.Wait()
	return nil
}

type bare struct {
	stores chan store
	sends  chan *[]byte
	failed chan error
	sync   func(*os.File) error
	free   sync.Pool // of texts that have gone
}

// A store is a message that is to be written; done is told when it is.
type store struct {
	text []byte
	done chan error
}

// take has a message written, and sent on after that.
func (b *bare) take(text []byte) error {
	kept, _ := b.free.Get().(*[]byte)
	if kept == nil {
		kept = new([]byte)
	}
	*kept = append((*kept)[:0], text...)
	s := store{*kept, make(chan error, 1)}
	b.stores <- s
	if err := <-s.done; err != nil {
		return err
	}
	b.sends <- kept
	return nil
}

// write writes what comes. All that has come meanwhile shares a sync.
func (b *bare) write() error {
	var file *os.File
	size := 0
	for first := range b.stores {
		group := []store{first}
		for more := true; more; {
			select {
			case s, ok := <-b.stores:
				if more = ok; ok {
					group = append(group, s)
				}
			default:
				more = false
			}
		}
		var err error
		if file == nil || size > bareFile {
			file, err = newBareFile(file)
			size = 0
		}
		for _, s := range group {
			if err == nil {
				_, err = file.Write(s.text)
			}
			size += len(s.text)
		}
		if err == nil {
			err = b.sync(file)
		}
		for _, s := range group {
			s.done <- err
		}
	}
	if file != nil {
		return file.Close()
	}
	return nil
}

// newBareFile opens the next file, and removes the one before it.
func newBareFile(last *os.File) (*os.File, error) {
	if last != nil {
		if err := errors.Join(last.Close(), os.Remove(last.Name())); err != nil {
			return nil, err
		}
	}
	return os.CreateTemp(".", "bare")
}

// send sends on what was written, over one connection.
func (b *bare) send(next string) error {
	c, err := net.Dial("tcp", next)
	if err != nil {
		return err
	}
	defer c.Close()
	k := &client{c: c, r: bufio.NewReader(c)}
	k.hear("220")
	k.say("EHLO bare.test\r\n", "250")
	for text := range b.sends {
		k.say("MAIL FROM:<a@from.test>\r\nRCPT TO:<r0@d0.test>\r\nDATA\r\n", "250", "250", "354")
		k.write(*text)
		k.write([]byte(".\r\n"), "250")
		if k.err != nil {
			return k.err
		}
		b.free.Put(text)
	}
	return nil
}
