package plain

import (
	"bufio"
	"io"

	"posthaste/internal/reuse"
)

// LF gives what r gives with CRLF made LF.
func LF(r io.Reader) io.Reader { return &lines{in: bufio.NewReaderSize(r, 32<<10), end: "\n"} }

// CRLF gives what r gives with every line, the last included, ended by CRLF,
// whether it ended in LF or CRLF.
func CRLF(r io.Reader) io.Reader {
	in, ok := r.(*bufio.Reader)
	if !ok {
		in = bufio.NewReaderSize(r, 32<<10)
	}
	return &lines{in: in, end: "\r\n", whole: true}
}

// lines changes line ends.
type lines struct {
	in    *bufio.Reader
	end   string
	whole bool // end the last line, too
	held  bool // a CR at the end of a piece, which may belong to a line end
	open  bool // a line has begun and not ended
	out   []byte
	err   error
}

func (l *lines) Read(p []byte) (int, error) {
	for len(l.out) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		l.fill()
	}
	n := copy(p, l.out)
	l.out = l.out[n:]
	return n, nil
}

// fill reads one line, or a piece of a long one.
func (l *lines) fill() {
	piece, err := l.in.ReadSlice('\n')
	out := reuse.Truncated(l.out)
	if l.held && (len(piece) == 0 || piece[0] != '\n') {
		out = append(out, '\r')
	}
	l.held = false
	ended := len(piece) > 0 && piece[len(piece)-1] == '\n'
	if ended {
		piece = piece[:len(piece)-1]
	}
	if n := len(piece); n > 0 && piece[n-1] == '\r' {
		piece = piece[:n-1]
		if !ended {
			if err == bufio.ErrBufferFull {
				l.held = true
			} else {
				out = append(out, piece...)
				piece = []byte{'\r'}
			}
		}
	}
	out = append(out, piece...)
	l.open = !ended && (l.open || len(out) > 0 || l.held)
	if ended {
		out = append(out, l.end...)
	}
	if err != nil && err != bufio.ErrBufferFull {
		l.err = err
		if err == io.EOF && l.whole && l.open {
			out = append(out, l.end...)
		}
	}
	l.out = out
}
