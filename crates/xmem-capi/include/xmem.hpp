// SPDX-License-Identifier: MPL-2.0

// xmem for C++17, over xmem.h, which describes each value.
//
//   auto camera = xmem::Consumer::open("cam0");
//   if (!camera)
//       return std::fprintf(stderr, "%s\n", camera.error().text.c_str()), 1;
//   for (const xmem::Frame &frame : *camera)
//       use(frame.plane(0).data, frame.plane(0).stride);    // read-only, not copied
//
// Objects are moved, not copied, and release what they own. Nothing throws but std::bad_alloc: functions return a Result, which is a
// value or an Error. Include OpenCV before this file for xmem::mat.

#ifndef XMEM_HPP
#define XMEM_HPP

#include "xmem.h"

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace xmem {

struct Error {
    xmem_result code = XMEM_OK;
    std::string text; // what to do about it
};

// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : content_(std::move(value)) {}
    Result(Error error) : content_(std::move(error)) {}

    explicit operator bool() const { return content_.index() == 0; }
    // Only if there is a value.
    T &operator*() & { return std::get<0>(content_); }
    T &&operator*() && { return std::get<0>(std::move(content_)); }
    T *operator->() { return &std::get<0>(content_); }
    // Only if there is none.
    const Error &error() const { return std::get<1>(content_); }
    // XMEM_OK, or the error's.
    xmem_result code() const { return *this ? XMEM_OK : error().code; }

private:
    std::variant<T, Error> content_;
};

namespace detail {

inline Error error(xmem_result code) { return Error{code, xmem_error()}; }

// A handle that is closed once.
template <typename Handle, xmem_result (*close)(Handle)>
class Owned {
public:
    Owned() = default;
    explicit Owned(Handle handle) : handle_(handle) {}
    Owned(Owned &&other) noexcept : handle_(std::exchange(other.handle_, Handle{0})) {}
    Owned &operator=(Owned &&other) noexcept {
        Owned before(std::exchange(handle_, other.release()));
        return *this;
    }
    ~Owned() {
        if (handle_.id != 0)
            close(handle_);
    }

    Handle get() const { return handle_; }
    // The caller closes it.
    Handle release() { return std::exchange(handle_, Handle{0}); }

private:
    Handle handle_{0};
};

// The description of a handle. Without the handle it is empty, so that nothing points to memory of others.
template <typename Info>
class Described : public Info {
public:
    Described() : Info{} { this->struct_size = sizeof(Info); }
    Described(Described &&other) noexcept : Info(other.take()) {}
    Described &operator=(Described &&other) noexcept {
        Info info = other.take();
        static_cast<Info &>(*this) = info;
        return *this;
    }

    Info take() {
        Info info = *this;
        static_cast<Info &>(*this) = Info{};
        this->struct_size = sizeof(Info);
        return info;
    }
};

} // namespace detail

// Bytes of a frame, as std::span of C++20.
class Bytes {
public:
    Bytes() = default;
    Bytes(const void *data, std::size_t size) : data_(static_cast<const unsigned char *>(data)), size_(size) {}

    const unsigned char *data() const { return data_; }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    const unsigned char *begin() const { return data_; }
    const unsigned char *end() const { return data_ + size_; }
    const unsigned char &operator[](std::size_t index) const {
        assert(index < size_);
        return data_[index];
    }

private:
    const unsigned char *data_ = nullptr;
    std::size_t size_ = 0;
};

// The rows of a plane, without their padding.
class Rows {
public:
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Bytes;
        using difference_type = std::ptrdiff_t;
        using pointer = const Bytes *;
        using reference = Bytes;

        iterator(const Rows &rows, std::size_t row) : rows_(&rows), row_(row) {}
        Bytes operator*() const { return (*rows_)[row_]; }
        iterator &operator++() {
            ++row_;
            return *this;
        }
        bool operator!=(const iterator &other) const { return row_ != other.row_; }
        bool operator==(const iterator &other) const { return row_ == other.row_; }

    private:
        const Rows *rows_;
        std::size_t row_;
    };

    explicit Rows(const xmem_plane &plane) : plane_(plane) {}

    std::size_t size() const { return plane_.rows; }
    Bytes operator[](std::size_t row) const {
        assert(row < plane_.rows);
        return {static_cast<const unsigned char *>(plane_.data) + row * plane_.stride, plane_.row_bytes};
    }
    iterator begin() const { return {*this, 0}; }
    iterator end() const { return {*this, plane_.rows}; }

private:
    xmem_plane plane_;
};

// A received frame. Its bytes are valid as long as it, or a frame made by `ref`, exists.
class Frame {
public:
    static Result<Frame> of(xmem_frame handle) {
        Frame frame(handle);
        if (auto code = xmem_frame_get(handle, &frame.info_); code != XMEM_OK)
            return detail::error(code);
        return frame;
    }

    const xmem_frame_info &info() const { return info_; }
    std::string_view format() const { return info_.format; }
    std::uint32_t width() const { return info_.width; }
    std::uint32_t height() const { return info_.height; }
    std::size_t planes() const { return info_.n_planes; }
    const xmem_plane &plane(std::size_t number) const {
        assert(number < info_.n_planes);
        return info_.planes[number];
    }
    Rows rows(std::size_t plane) const { return Rows(this->plane(plane)); }
    // All bytes. Empty if the frame is in several parts.
    Bytes bytes() const { return {info_.data, info_.data ? info_.size : 0}; }
    // Bytes that the producer attached by this name. Empty if there are none.
    Bytes attachment(const char *name) const {
        const void *data = nullptr;
        std::size_t size = 0;
        (void)xmem_frame_attachment(handle_.get(), name, &data, &size);
        return {data, size};
    }
    // The caps of its stream.
    std::string_view caps() const {
        const char *caps = "";
        (void)xmem_frame_caps(handle_.get(), &caps);
        return caps;
    }
    // One more reference to the same frame.
    Result<Frame> ref() const {
        xmem_frame other{0};
        if (auto code = xmem_frame_ref(handle_.get(), &other); code != XMEM_OK)
            return detail::error(code);
        return of(other);
    }
    // Addresses on the CUDA device for this stream, as xmem_frame_get_cuda.
    Result<xmem_frame_info> cuda(void *stream) const {
        xmem_frame_info info = XMEM_FRAME_INFO;
        if (auto code = xmem_frame_get_cuda(handle_.get(), stream, &info); code != XMEM_OK)
            return detail::error(code);
        return info;
    }
    // The planes in DMA buffers, as xmem_frame_dmabuf. Their descriptors are open as long as this frame exists.
    Result<xmem_dmabuf> dmabuf() const {
        xmem_dmabuf dmabuf = XMEM_DMABUF;
        if (auto code = xmem_frame_dmabuf(handle_.get(), &dmabuf); code != XMEM_OK)
            return detail::error(code);
        return dmabuf;
    }
    xmem_frame get() const { return handle_.get(); }

private:
    explicit Frame(xmem_frame handle) : handle_(handle) {}

    detail::Owned<xmem_frame, xmem_frame_release> handle_;
    detail::Described<xmem_frame_info> info_;
};

// Receives the frames of a pool, over restarts of its producer.
class Consumer {
public:
    static Result<Consumer> open(const char *pool, xmem_consumer_options options = XMEM_CONSUMER_OPTIONS) {
        xmem_consumer handle{0};
        if (auto code = xmem_consumer_open(pool, &options, &handle); code != XMEM_OK)
            return detail::error(code);
        return Consumer(handle);
    }

    // Waits at most this many nanoseconds.
    Result<Frame> next(std::int64_t timeout = XMEM_FOREVER) {
        xmem_frame frame{0};
        if (auto code = xmem_consumer_next(handle_.get(), timeout, &frame); code != XMEM_OK)
            return detail::error(code);
        return Frame::of(frame);
    }

    xmem_consumer_stats stats() const {
        xmem_consumer_stats stats = XMEM_CONSUMER_STATS;
        (void)xmem_consumer_get_stats(handle_.get(), &stats);
        return stats;
    }

    // For other threads: ends the loop.
    void cancel() { (void)xmem_consumer_cancel(handle_.get()); }
    xmem_consumer get() const { return handle_.get(); }

    // The frames until the stream ends, or until an error, which `error` has then.
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Frame;
        using difference_type = std::ptrdiff_t;
        using pointer = const Frame *;
        using reference = const Frame &;

        iterator() = default;
        explicit iterator(Consumer *consumer) : consumer_(consumer) { ++*this; }
        reference operator*() const { return *frame_; }
        pointer operator->() const { return &*frame_; }
        iterator &operator++() {
            // Released first: the budget has room for it again.
            frame_.reset();
            auto next = consumer_->next();
            if (next)
                frame_.emplace(*std::move(next));
            else {
                consumer_->last_ = next.error();
                consumer_ = nullptr;
            }
            return *this;
        }
        bool operator!=(const iterator &other) const { return consumer_ != other.consumer_; }
        bool operator==(const iterator &other) const { return consumer_ == other.consumer_; }

    private:
        Consumer *consumer_ = nullptr;
        std::optional<Frame> frame_;
    };

    iterator begin() { return iterator(this); }
    iterator end() { return {}; }
    // Why the last loop ended.
    const Error &error() const { return last_; }

private:
    explicit Consumer(xmem_consumer handle) : handle_(handle) {}

    detail::Owned<xmem_consumer, xmem_consumer_close> handle_;
    Error last_;
};

// A slot to write a frame into. Given back if it isn't published.
class Slot {
public:
    static Result<Slot> of(xmem_slot handle) {
        Slot slot(handle);
        if (auto code = xmem_slot_get(handle, &slot.info_); code != XMEM_OK)
            return detail::error(code);
        return slot;
    }

    void *data() const { return info_.data; }
    std::size_t size() const { return info_.size; }
    std::size_t planes() const { return info_.n_planes; }
    unsigned char *plane(std::size_t number) const {
        assert(number < info_.n_planes);
        return static_cast<unsigned char *>(const_cast<void *>(info_.planes[number].data));
    }
    std::size_t stride(std::size_t number) const { return info_.planes[number].stride; }

    // Returns the frame's sequence. After an error the slot can be published again.
    Result<std::uint64_t> publish(xmem_times times = XMEM_TIMES, std::int64_t timeout = XMEM_FOREVER) {
        std::uint64_t sequence = 0;
        if (auto code = xmem_slot_publish(handle_.get(), &times, timeout, &sequence); code != XMEM_OK)
            return detail::error(code);
        handle_.release();
        info_.take();
        return sequence;
    }

private:
    explicit Slot(xmem_slot handle) : handle_(handle) {}

    detail::Owned<xmem_slot, xmem_slot_release> handle_;
    detail::Described<xmem_slot_info> info_;
};

// Publishes frames in a pool.
class Producer {
public:
    static Result<Producer> create(const char *pool, xmem_producer_options options = XMEM_PRODUCER_OPTIONS) {
        xmem_producer handle{0};
        if (auto code = xmem_producer_create(pool, &options, &handle); code != XMEM_OK)
            return detail::error(code);
        return Producer(handle);
    }

    Result<Slot> acquire(std::size_t size, std::int64_t timeout = XMEM_FOREVER) {
        xmem_slot slot{0};
        if (auto code = xmem_producer_acquire(handle_.get(), size, timeout, &slot); code != XMEM_OK)
            return detail::error(code);
        return Slot::of(slot);
    }
    Result<Slot> acquire(const char *format, std::uint32_t width, std::uint32_t height, std::int64_t timeout = XMEM_FOREVER) {
        xmem_slot slot{0};
        if (auto code = xmem_producer_acquire_video(handle_.get(), format, width, height, timeout, &slot); code != XMEM_OK)
            return detail::error(code);
        return Slot::of(slot);
    }
    Result<std::monostate> wait_for_consumers(std::size_t count, std::int64_t timeout = XMEM_FOREVER) {
        if (auto code = xmem_producer_wait_for_consumers(handle_.get(), count, timeout); code != XMEM_OK)
            return detail::error(code);
        return std::monostate{};
    }
    void end_stream() { (void)xmem_producer_end_stream(handle_.get()); }
    xmem_producer get() const { return handle_.get(); }

private:
    explicit Producer(xmem_producer handle) : handle_(handle) {}

    detail::Owned<xmem_producer, xmem_producer_close> handle_;
};

#ifdef CV_VERSION
// A plane as a matrix over the frame's memory: keep the frame, and don't write to it. `type` is for example CV_8UC1 for the plane of
// brightness of NV12, or CV_8UC3 for RGB.
inline cv::Mat mat(const Frame &frame, int type, std::size_t plane = 0) {
    const xmem_plane &from = frame.plane(plane);
    const int columns = static_cast<int>(from.row_bytes / CV_ELEM_SIZE(type));
    return cv::Mat(static_cast<int>(from.rows), columns, type, const_cast<void *>(from.data), from.stride);
}
#endif

} // namespace xmem

#endif
