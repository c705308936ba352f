// What Go's HTTP/2 server makes of the bytes of a client, as an oracle for ours.
//
// Standard input has cases: a length of four bytes, then what a client sends, preface and all. For each, standard output
// has a line of JSON: the requests that were read to their end, the streams that the server reset, and the error by
// which it ended the connection, -1 where it did not. No request is answered before its case is over, so that what
// comes behind it meets an open stream, whenever that is.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Of a ping behind all that the client sends: when it is answered, all of that was read.
var lastPing = [8]byte{0xff, 'o', 'r', 'a', 'c', 'l', 'e', 0xff}

type request struct {
	Method    string            `json:"method"`
	Target    string            `json:"target"`
	Authority string            `json:"authority"`
	Headers   map[string]string `json:"headers"`
	Body      string            `json:"body"`
}

type outcome struct {
	Requests []request      `json:"requests"`
	Resets   map[uint32]int `json:"resets"`
	Error    int            `json:"error"`
}

// client is the server's side of a connection whose client has sent everything already.
type client struct {
	mu      sync.Mutex
	input   *bytes.Reader
	output  bytes.Buffer
	wrote   *sync.Cond
	closed  bool
	release chan struct{}
	ended   sync.Once
}

func newClient(data []byte) *client {
	var ping bytes.Buffer
	_ = http2.NewFramer(&ping, nil).WritePing(false, lastPing)
	it := &client{input: bytes.NewReader(append(data, ping.Bytes()...)), release: make(chan struct{})}
	it.wrote = sync.NewCond(&it.mu)
	return it
}

func (it *client) Read(into []byte) (int, error) {
	it.mu.Lock()
	read, err := it.input.Read(into)
	it.mu.Unlock()
	if err == io.EOF {
		<-it.release
	}
	return read, err
}

func (it *client) Write(data []byte) (int, error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.wrote.Broadcast()
	return it.output.Write(data)
}

func (it *client) Close() error {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.closed = true
	it.wrote.Broadcast()
	return nil
}

func (it *client) end() { it.ended.Do(func() { close(it.release) }) }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "memory" }

func (it *client) LocalAddr() net.Addr              { return address{} }
func (it *client) RemoteAddr() net.Addr             { return address{} }
func (it *client) SetDeadline(time.Time) error      { return nil }
func (it *client) SetReadDeadline(time.Time) error  { return nil }
func (it *client) SetWriteDeadline(time.Time) error { return nil }

// waitRead returns once all that the client has sent was read, or the server has ended the connection.
func (it *client) waitRead() {
	it.mu.Lock()
	defer it.mu.Unlock()
	for !it.closed && !bytes.Contains(it.output.Bytes(), lastPing[:]) {
		if resets, code := sent(it.output.Bytes()); resets != nil && code > 0 {
			return
		}
		it.wrote.Wait()
	}
}

// sent returns what the server has said of streams and of the connection.
func sent(output []byte) (map[uint32]int, int) {
	resets, code := map[uint32]int{}, -1
	framer := http2.NewFramer(nil, bytes.NewReader(output))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return resets, code
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			resets[frame.StreamID] = int(frame.ErrCode)
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				code = int(frame.ErrCode)
			}
		}
	}
}

func ask(server *http2.Server, data []byte) outcome {
	conn := newClient(data)
	var mu sync.Mutex
	seen, busy, over := []request{}, 0, make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		busy++
		mu.Unlock()
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		if err == nil {
			headers := map[string]string{}
			for name, values := range r.Header {
				headers[strings.ToLower(name)] = strings.Join(values, ", ")
			}
			seen = append(seen, request{r.Method, r.RequestURI, r.Host, headers, hex.EncodeToString(body)})
		}
		busy--
		mu.Unlock()
		<-over
	})
	// It stays for a second behind an error, for which nobody waits.
	go server.ServeConn(conn, &http2.ServeConnOpts{
		Handler: handler, BaseConfig: &http.Server{ErrorLog: log.New(io.Discard, "", 0)}})
	conn.waitRead()
	// What was read whole is with its handler soon; who waits for the rest of a body waits on.
	for quiet, last := 0, -1; quiet < 3; {
		time.Sleep(time.Millisecond)
		mu.Lock()
		now := len(seen)*1_000 + busy
		mu.Unlock()
		if now == last {
			quiet++
		} else {
			quiet, last = 0, now
		}
	}
	mu.Lock()
	requests := append([]request{}, seen...)
	mu.Unlock()
	conn.mu.Lock()
	resets, code := sent(conn.output.Bytes())
	conn.mu.Unlock()
	conn.end()
	close(over)
	return outcome{requests, resets, code}
}

func main() {
	log.SetOutput(io.Discard)
	server := &http2.Server{MaxReadFrameSize: 16_384, MaxConcurrentStreams: 1_000}
	input, output := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	for {
		var size uint32
		if binary.Read(input, binary.BigEndian, &size) != nil {
			return
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(input, data); err != nil {
			return
		}
		if encoder.Encode(ask(server, data)) != nil || output.Flush() != nil {
			return
		}
	}
}
