package tablegate

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// TokenStore keeps one token. A subscription loads it once, and saves each newer one when its consumer has all before it.
//
// So a consumer that ends anywhere gets each event at least once: what it makes of one must be done before it asks for
// the next. For a copy that outlives the program that is not enough: keep it with the token of its last event, in one
// transaction, and give that in the request.
type TokenStore interface {
	// Load returns the token that was saved last; "" where there is none.
	Load() (string, error)
	// Save keeps a token instead of the one before.
	Save(token string) error
}

// TokenMemory keeps it for as long as the program lives.
type TokenMemory struct {
	mutex sync.Mutex
	token string
}

// Load returns the token.
func (m *TokenMemory) Load() (string, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.token, nil
}

// Save keeps the token.
func (m *TokenMemory) Save(token string) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.token = token
	return nil
}

// TokenFile keeps it in the file of this path, which has one complete token at any moment.
//
// It is not forced to disk: after a lost power an older token, or none, leads to changes that come once more.
type TokenFile string

// Load returns what the file holds; "" where there is none.
func (f TokenFile) Load() (string, error) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// Save replaces the file.
func (f TokenFile) Save(token string) error {
	next := string(f) + ".next"
	if err := os.WriteFile(next, []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(next, string(f))
}
