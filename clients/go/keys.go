package tablegate

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Key is a row's key: the value of each key column, in the order of the table's key. A timestamp is a time.Time in UTC,
// an enum its number as an int32; all others are as generated code has them.
type Key []any

// String returns a text that keys have in common exactly if they are the same key. Whole numbers of all types are the
// same: Get(7) finds what int64(7) is.
func (k Key) String() string {
	texts := make([]string, len(k))
	for i, value := range k {
		texts[i] = valueText(value)
	}
	return strings.Join(texts, ",")
}

func valueText(value any) string {
	switch value := value.(type) {
	case int64: // the usual ones, without reflection
		return strconv.FormatInt(value, 10)
	case string:
		return strconv.Quote(value)
	case []byte:
		return "x" + hex.EncodeToString(value)
	case time.Time:
		return fmt.Sprintf("t%d.%d", value.Unix(), value.Nanosecond())
	}
	switch kind := reflect.ValueOf(value); kind.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(kind.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(kind.Uint(), 10)
	case reflect.String:
		return strconv.Quote(kind.String())
	default:
		return fmt.Sprintf("%v", value)
	}
}
